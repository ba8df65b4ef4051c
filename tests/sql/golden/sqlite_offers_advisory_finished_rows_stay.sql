-- stamp (id)
select cast(coalesce("attempt", 0) as integer),
       cast(quote("id") || ',' || quote("attempt") || ',' || quote("processed_at") as blob)
  from "app"."jobs"
 where "id" = ?;

-- fate (id, dead_group)
select case when "processed_at" is not null then 'DONE' else 'FREE' end
  from "app"."jobs"
 where "id" = :id;
