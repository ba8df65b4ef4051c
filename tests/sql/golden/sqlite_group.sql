-- candidates (group, limit)
select "id",
       coalesce("locked_until" >= '1900-01-01', 0),
       "partition_key",
       null,
       cast("group" as text),
       "headers",
       cast("payload" as text)
  from "app"."jobs"
 where "group" = ?1
   and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and case when ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
        then ("retry_after" is null or (typeof("retry_after") = 'text' and "retry_after" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '  *' and julianday("retry_after") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) end
 order by "priority", "retry_after", "id"
 limit ?;

-- claim (id x 2)
update "app"."jobs"
   set "locked_until" = max(strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds'),
                    coalesce(strftime('%Y-%m-%d %H:%M:%f', case when "locked_until" < '1900-01-01' then strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+365000 days') else "locked_until" end, '+0.001 seconds'), '')),
       "attempt" = coalesce("attempt", 0) + 1
 where "id" in (?, ?)
returning "id", "locked_until", cast("attempt" as integer);

-- lease_end ()
select strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds');

-- extend (token, new, id x 2)
update "app"."jobs"
   set "locked_until" = ?2
 where "locked_until" = ?1
   and "locked_until" < ?2
   and "id" in (?, ?)
returning "id";

-- still_held (token, id x 2)
select "id"
  from "app"."jobs"
 where "locked_until" = ? and "id" in (?, ?);

-- ack (token, id x 2)
delete from "app"."jobs"
 where "locked_until" = ?1
   and "id" in (?, ?)
returning "id";

-- retry (id, token, delay, reason)
update "app"."jobs"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "retry_after" = iif(:delay is null, "retry_after", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "last_error" = coalesce(:reason, "last_error")
 where "id" = :id
   and "locked_until" = :token;

-- snooze (id, token, delay, attempt)
update "app"."jobs"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "retry_after" = iif(:delay is null, "retry_after", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "attempt" = :attempt
 where "id" = :id
   and "locked_until" = :token;

-- bury (id, token, reason, dead_group)
update "app"."jobs"
   set "group" = :dead_group,
       "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "last_error" = coalesce(:reason, "last_error")
 where "id" = :id
   and "locked_until" = :token;

-- remove (id, token)
delete from "app"."jobs"
 where "id" = :id
   and "locked_until" = :token;

-- release (token, attempt, id x 2)
update "app"."jobs"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "attempt" = ?2
 where "locked_until" = ?1
   and "id" in (?, ?)
returning "id";

-- recount (id, token, attempt, reason)
update "app"."jobs"
   set "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "id" = :id
   and "locked_until" = :token;

-- look (id x 2)
select "id", strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+365000 days')
  from "app"."jobs"
 where "id" in (?, ?);

-- backlog (group)
select exists (select 1 from "app"."jobs" where "group" = ?1 and "retry_after" is null and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))))
       or exists (select 1 from "app"."jobs" where "group" = ?1 and "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and ("retry_after" is null or (typeof("retry_after") = 'text' and "retry_after" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '  *' and julianday("retry_after") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))),
       (select count(*) from (select 1 from "app"."jobs" where "group" = ?1 and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') limit 100000));

-- waiting (group, limit)
with seen as (
  select "retry_after" as due, coalesce("retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as later,
         coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held,
         ("retry_after" is null or (typeof("retry_after") = 'text' and "retry_after" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("retry_after", 11), '+00:00', '') not glob '  *' and julianday("retry_after") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) as spelt
    from "app"."jobs"
   where "group" = ?1
   order by "priority", "retry_after", "id"
   limit ?
), summed as (
  select count(*) as rows, count(*) filter (where spelt and later) as later, count(*) filter (where spelt and held) as held,
         count(*) filter (where spelt and not later and not held) as free, min(due) filter (where spelt and later) as first
    from seen
)
select rows, later, held, free, first, (julianday(first) - julianday('now')) * 86400.0,
       case when rows = 0 then (select quote("group") from "app"."jobs" limit 1) end
  from summed;

-- awaited (group, id x 2)
select exists (select 1 from "app"."jobs"
 where "group" = ?1
   and "id" in (?, ?));
