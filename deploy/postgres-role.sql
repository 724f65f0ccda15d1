-- Make the role of the services: it owns the schema of the ledger, and may nothing else in this server.
-- psql runs it as the superuser, in the database of the ledger, which is empty.
\getenv password LEDGER_PASSWORD
create role onejob login nosuperuser nocreatedb nocreaterole noreplication nobypassrls connection limit 200
  password :'password';
create schema onejob authorization onejob;
revoke all on database onejob from public;
grant connect on database onejob to onejob;
revoke all on schema public from public;
revoke connect on database postgres from public;
revoke connect on database template1 from public;
