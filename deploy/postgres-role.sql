-- Make two roles: onejob_owner migrates the ledger, whose schema it owns; onejob, the role of the services, reads and
-- writes the tables, and cannot change the schema. Both may do nothing else in this server.
-- psql runs it as the superuser, in the database of the ledger, which is empty. The passwords are those of the URLs.
\set owner_password `sed 's/.*:\(.*\)@.*/\1/' /run/secrets/owner-store`
\set password `sed 's/.*:\(.*\)@.*/\1/' /run/secrets/store`
create role onejob_owner login nosuperuser nocreatedb nocreaterole noreplication nobypassrls connection limit 20
  password :'owner_password';
create role onejob login nosuperuser nocreatedb nocreaterole noreplication nobypassrls connection limit 200
  password :'password';
create schema onejob authorization onejob_owner;
grant usage on schema onejob to onejob;
alter default privileges for role onejob_owner in schema onejob grant select, insert, update, delete on tables to onejob;
alter default privileges for role onejob_owner in schema onejob grant usage on sequences to onejob;
revoke all on database onejob from public;
grant connect on database onejob to onejob_owner, onejob;
revoke all on schema public from public;
revoke connect on database postgres from public;
revoke connect on database template1 from public;
