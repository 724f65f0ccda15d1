-- Make two roles for the ledger of one database: the owner migrates the schema of the ledger; the role of the services
-- reads and writes its tables, and cannot change the schema, its version, or what is in the audit log. A ledger that is
-- there already becomes the owner's.
--
-- psql runs this as a superuser, connected to the database. Each variable has a default, those of the names as here:
--
--   onejob migrate roles | psql -d shop -v schema=onejob -v owner=onejob_owner -v role=onejob \
--     -v owner_password=... -v password=...
--
-- A role without a password logs in by another method of pg_hba.conf, or after `\password onejob`, which no list of
-- processes shows.
\set ON_ERROR_STOP on
\if :{?schema}
\else
  \set schema onejob
\endif
\if :{?owner}
\else
  \set owner onejob_owner
\endif
\if :{?role}
\else
  \set role onejob
\endif
\if :{?owner_password}
\else
  \set owner_password ''
\endif
\if :{?password}
\else
  \set password ''
\endif
begin;
set local client_min_messages = warning;
create role :"owner" login nosuperuser nocreatedb nocreaterole noreplication nobypassrls connection limit 20
  password :'owner_password';
create role :"role" login nosuperuser nocreatedb nocreaterole noreplication nobypassrls connection limit 200
  password :'password';
create schema if not exists :"schema";
alter schema :"schema" owner to :"owner";
select format('alter table %I.%I owner to %I', schemaname, tablename, :'owner') from pg_tables
where schemaname = :'schema'
\gexec
select format('alter function %s owner to %I', pg_proc.oid::regprocedure, :'owner') from pg_proc
where pronamespace = :'schema'::regnamespace
\gexec
grant usage on schema :"schema" to :"role";
grant select, insert, update, delete on all tables in schema :"schema" to :"role";
grant usage on all sequences in schema :"schema" to :"role";
grant execute on all functions in schema :"schema" to :"role";
-- These tables are changed by the owner alone. `onejob migrate up` takes the rights when it makes the tables.
select format('revoke %s on %I.%I from %I', rights, schemaname, tablename, :'role')
from (values
  ('schema_version', 'insert, update, delete'), ('ledger_info', 'insert, update, delete'), ('audit_log', 'update, delete')
) as kept (name, rights) join pg_tables on tablename = name and schemaname = :'schema'
\gexec
alter default privileges for role :"owner" in schema :"schema" grant select, insert, update, delete on tables to :"role";
alter default privileges for role :"owner" in schema :"schema" grant usage on sequences to :"role";
alter default privileges for role :"owner" in schema :"schema" grant execute on functions to :"role";
grant connect on database :"DBNAME" to :"owner", :"role";
commit;
\if :{?quiet}
\else
\warn 'WARNING: as every role, these two may connect to each database that PUBLIC may connect to. Nothing was revoked:'
\warn 'deploy/compose-role.sql of the repository shows how to, on a server that has nothing but the ledger.'
\endif
