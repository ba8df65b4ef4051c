-- candidates (group, busy x 2, limit)
select "id",
       "partition_key",
       null,
       cast("group" as text),
       "headers",
       cast("payload" as text),
       cast(('it''s 100% \ {' || 'x}' || ' ' || case typeof("partition_key") when 'blob' then lower(hex("partition_key")) else coalesce(cast("partition_key" as text), '') end) as blob)
  from "app"."jobs"
 where "group" = ?1
   and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and ("retry_after" is null or (typeof("retry_after") = 'text' and "retry_after" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '  *' and julianday("retry_after") is not null))
   and (cast(('it''s 100% \ {' || 'x}' || ' ' || case typeof("partition_key") when 'blob' then lower(hex("partition_key")) else coalesce(cast("partition_key" as text), '') end) as blob) in (?, ?)) is not 1
 order by "priority", "retry_after", "id"
 limit ?;

-- count (id)
update "app"."jobs"
   set "attempt" = coalesce("attempt", 0) + 1
 where "id" = ?
returning cast("attempt" as integer);

-- ack (id)
delete from "app"."jobs"
 where "id" = :id;

-- drop (id)
delete from "app"."jobs"
 where "id" = :id;

-- retry (id, delay, attempt, reason)
update "app"."jobs"
   set "retry_after" = iif(:delay is null, "retry_after", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "id" = :id;

-- snooze (id, delay, attempt)
update "app"."jobs"
   set "retry_after" = iif(:delay is null, "retry_after", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "attempt" = :attempt
 where "id" = :id;

-- bury (id, attempt, reason, dead_group)
update "app"."jobs"
   set "group" = :dead_group,
       "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "id" = :id;

-- release (id, attempt)
update "app"."jobs"
   set "attempt" = :attempt
 where "id" = :id;

-- recount (id, attempt, reason)
update "app"."jobs"
   set "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "id" = :id;

-- remove (id)
delete from "app"."jobs"
 where "id" = :id;
