-- Make the roles of the ledger on the server of the Compose file, which has nothing else, and let them do nothing else.
-- The passwords are those of the URLs.
\set owner_password `sed 's/.*:\(.*\)@.*/\1/' /run/secrets/owner-store`
\set password `sed 's/.*:\(.*\)@.*/\1/' /run/secrets/store`
\set quiet on
\ir /etc/onejob/roles.sql
revoke all on database onejob from public;
revoke all on schema public from public;
revoke connect on database postgres from public;
revoke connect on database template1 from public;
