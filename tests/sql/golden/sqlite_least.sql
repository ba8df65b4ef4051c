-- candidates (limit)
select "id",
       0,
       null,
       null,
       null,
       null,
       null,
       "id",
       "locked_until"
  from "app"."jobs"
 where case when ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
        then ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) end
 order by "id"
 limit ?;

-- claim (id x 2)
update "app"."jobs"
   set "locked_until" = max(strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds'),
                    coalesce(strftime('%Y-%m-%d %H:%M:%f', case when "locked_until" < '1900-01-01' then strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+365000 days') else "locked_until" end, '+0.001 seconds'), ''))
 where "id" in (?, ?)
returning "id", "locked_until", 1;

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

-- retry (id, token, delay)
update "app"."jobs"
   set "locked_until" = iif(:delay is null, strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'), max(strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay)), strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+0.001 seconds')))
 where "id" = :id
   and "locked_until" = :token;

-- snooze (id, token, delay)
update "app"."jobs"
   set "locked_until" = iif(:delay is null, strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'), max(strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay)), strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+0.001 seconds')))
 where "id" = :id
   and "locked_until" = :token;

-- remove (id, token)
delete from "app"."jobs"
 where "id" = :id
   and "locked_until" = :token;

-- release (token, id x 2)
update "app"."jobs"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days')
 where "locked_until" = ?1
   and "id" in (?, ?)
returning "id";

-- look (id x 2)
select "id", strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+365000 days')
  from "app"."jobs"
 where "id" in (?, ?);

-- backlog ()
select exists (select 1 from "app"."jobs" where ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))),
       0;

-- waiting (limit)
with seen as (
  select null as due, coalesce(null > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as later,
         coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held,
         ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) as spelt
    from "app"."jobs"
   order by "id"
   limit ?
), summed as (
  select count(*) as rows, count(*) filter (where spelt and later) as later, count(*) filter (where spelt and held) as held,
         count(*) filter (where spelt and not later and not held) as free, min(due) filter (where spelt and later) as first
    from seen
)
select rows, later, held, free, first, (julianday(first) - julianday('now')) * 86400.0,
       case when rows = 0 then null end
  from summed;

-- awaited (id x 2)
select exists (select 1 from "app"."jobs"
 where "id" in (?, ?));
