-- stamp (id)
select cast(coalesce("attempt", 0) as integer),
       cast(quote("User Id") || ',' || quote("pay%load") || ',' || quote("headers") || ',' || quote("group") || ',' || quote("a""b") || ',' || quote("priority") || ',' || quote("%(id)s") || ',' || quote("attempt") || ',' || quote("locked_until") || ',' || quote("last_error") as blob)
  from "My Schema"."or""der %s"
 where "User Id" = ?;

-- fate (id, dead_group)
select 'FREE'
  from "My Schema"."or""der %s"
 where "User Id" = :id;

-- dead (id)
select 1
  from "dead"
 where "User Id" = :id;
