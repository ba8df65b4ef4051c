-- candidates (busy x 2, limit)
select "id",
       null,
       null,
       null,
       null,
       null,
       cast((case typeof("id") when 'blob' then lower(hex("id")) else coalesce(cast("id" as text), '') end) as blob),
       "id",
       "attempt",
       "processed_at"
  from "app"."jobs"
 where "processed_at" is null
   and (cast((case typeof("id") when 'blob' then lower(hex("id")) else coalesce(cast("id" as text), '') end) as blob) in (?, ?)) is not 1
 order by "id"
 limit ?;

-- count (id)
update "app"."jobs"
   set "attempt" = coalesce("attempt", 0) + 1
 where "id" = ?
returning cast("attempt" as integer);

-- ack (id, attempt)
update "app"."jobs"
   set "processed_at" = strftime('%Y-%m-%d %H:%M:%f', 'now'),
       "attempt" = :attempt
 where "id" = :id;

-- drop (id, attempt)
update "app"."jobs"
   set "processed_at" = strftime('%Y-%m-%d %H:%M:%f', 'now'),
       "attempt" = :attempt
 where "id" = :id;

-- retry (id, attempt)
update "app"."jobs"
   set "attempt" = :attempt
 where "id" = :id;

-- snooze (id, attempt)
update "app"."jobs"
   set "attempt" = :attempt
 where "id" = :id;

-- release (id, attempt)
update "app"."jobs"
   set "attempt" = :attempt
 where "id" = :id;

-- recount (id, attempt)
update "app"."jobs"
   set "attempt" = :attempt
 where "id" = :id;

-- remove (id)
delete from "app"."jobs"
 where "id" = :id;
