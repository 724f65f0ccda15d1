-- What only the owner of the tables may do; applied again by each migration.

-- Trim the audit log: delete up to two of the oldest entries of a kind that exceed its limits. Roles that may not delete
-- entries call it with the owner's rights, and for all but the owner the limits are those of the ledger.
create or replace function onejob.trim_audit_log(of_kind text, keep bigint, keep_for double precision, at_time double precision)
returns void language sql security definer set search_path = pg_catalog, pg_temp
as $$
  with limits as (
    select
      case when session_user = current_user then keep else 10000 end as entries,
      case when session_user = current_user then at_time - keep_for
        else extract(epoch from clock_timestamp()) - 7776000 end as since
  )
  delete from onejob.audit_log as entries using limits
  where entries.id in (select id from onejob.audit_log where kind = of_kind order by id limit 2 for update skip locked)
    and (
      entries.at < limits.since
      or entries.id <= (
        select id from onejob.audit_log where kind = of_kind order by id desc offset limits.entries limit 1
      )
    )
$$;

-- Tables that no service changes: take the rights that default privileges have given to others than their owner.
do $$ declare surplus record; begin
  for surplus in
    select relation, rights, case when acl.grantee = 0 then 'public' else quote_ident(pg_get_userbyid(acl.grantee)) end as grantee
    from (values
      ('onejob.schema_version', 'insert, update, delete, truncate'), ('onejob.ledger_info', 'insert, update, delete, truncate'),
      ('onejob.audit_log', 'update, delete, truncate')
    ) as kept (relation, rights)
    join pg_class on pg_class.oid = kept.relation::regclass, aclexplode(relacl) as acl
    where acl.grantee <> relowner
    group by 1, 2, 3
  loop execute format('revoke %s on %s from %s', surplus.rights, surplus.relation, surplus.grantee); end loop; end $$;
