-- candidates (group, limit)
select "User Id",
       coalesce("locked_until" >= '1900-01-01', 0),
       "a""b",
       case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end,
       cast("group" as text),
       "headers",
       cast("pay%load" as text)
  from "My Schema"."or""der %s"
 where "group" = ?1
   and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and case when ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
        then ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) end
   and "User Id" is not null
 order by "priority", "%(id)s", "User Id"
 limit ?;

-- candidates, full lanes left out (group, full_key x 2, limit)
select "User Id",
       coalesce("locked_until" >= '1900-01-01', 0),
       "a""b",
       case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end,
       cast("group" as text),
       "headers",
       cast("pay%load" as text)
  from "My Schema"."or""der %s"
 where "group" = ?1
   and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and case when ("locked_until" is null or "locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
        then ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) end
   and "User Id" is not null
   and (case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end in (?, ?)) is not 1
 order by "priority", "%(id)s", "User Id"
 limit ?;

-- claim (id x 2)
update "My Schema"."or""der %s"
   set "locked_until" = max(strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds'),
                    coalesce(strftime('%Y-%m-%d %H:%M:%f', case when "locked_until" < '1900-01-01' then strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+365000 days') else "locked_until" end, '+0.001 seconds'), '')),
       "attempt" = coalesce("attempt", 0) + 1
 where "User Id" in (?, ?)
returning "User Id", "locked_until", cast("attempt" as integer);

-- lease_end ()
select strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds');

-- extend (token, new, id x 2)
update "My Schema"."or""der %s"
   set "locked_until" = ?2
 where "locked_until" = ?1
   and "locked_until" < ?2
   and "User Id" in (?, ?)
returning "User Id";

-- still_held (token, id x 2)
select "User Id"
  from "My Schema"."or""der %s"
 where "locked_until" = ? and "User Id" in (?, ?);

-- ack (token, id x 2)
delete from "My Schema"."or""der %s"
 where "locked_until" = ?1
   and "User Id" in (?, ?)
returning "User Id";

-- retry (id, token, delay, reason)
update "My Schema"."or""der %s"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "%(id)s" = iif(:delay is null, "%(id)s", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "last_error" = coalesce(:reason, "last_error")
 where "User Id" = :id
   and "locked_until" = :token;

-- snooze (id, token, delay, attempt)
update "My Schema"."or""der %s"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "%(id)s" = iif(:delay is null, "%(id)s", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "attempt" = :attempt
 where "User Id" = :id
   and "locked_until" = :token;

-- bury (id, token, reason)
insert into "dead" ("User Id", "pay%load", "headers", "group", "a""b", "priority", "%(id)s", "attempt", "locked_until", "last_error")
select "User Id", "pay%load", "headers", "group", "a""b", "priority", "%(id)s", "attempt", strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'), coalesce(:reason, "last_error")
  from "My Schema"."or""der %s"
 where "User Id" = :id
   and "locked_until" = :token;

-- remove (id, token)
delete from "My Schema"."or""der %s"
 where "User Id" = :id
   and "locked_until" = :token;

-- release (token, attempt, id x 2)
update "My Schema"."or""der %s"
   set "locked_until" = strftime('%Y-%m-%d %H:%M:%f', "locked_until", '-365000 days'),
       "attempt" = ?2
 where "locked_until" = ?1
   and "User Id" in (?, ?)
returning "User Id";

-- recount (id, token, attempt, reason)
update "My Schema"."or""der %s"
   set "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "User Id" = :id
   and "locked_until" = :token;

-- look (id x 2)
select "User Id", strftime('%Y-%m-%d %H:%M:%f', "locked_until", '+365000 days')
  from "My Schema"."or""der %s"
 where "User Id" in (?, ?);

-- backlog (group)
select exists (select 1 from "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" is null and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))))
       or exists (select 1 from "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null)))),
       (select count(*) from (select 1 from "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" > strftime('%Y-%m-%d %H:%M:%f', 'now') limit 100000));

-- waiting (group, limit)
with seen as (
  select "%(id)s" as due, coalesce("%(id)s" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as later,
         coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held,
         ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null)) and ("locked_until" = '' or ("locked_until" is null or (typeof("locked_until") = 'text' and "locked_until" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("locked_until", 11), '+00:00', '') not glob '  *' and julianday("locked_until") is not null))) as spelt
    from "My Schema"."or""der %s"
   where "group" = ?1
   order by "priority", "%(id)s", "User Id"
   limit ?
), summed as (
  select count(*) as rows, count(*) filter (where spelt and later) as later, count(*) filter (where spelt and held) as held,
         count(*) filter (where spelt and not later and not held) as free, min(due) filter (where spelt and later) as first
    from seen
)
select rows, later, held, free, first, (julianday(first) - julianday('now')) * 86400.0,
       case when rows = 0 then (select quote("group") from "My Schema"."or""der %s" limit 1) end
  from summed;

-- awaited (group, id x 2)
select exists (select 1 from "My Schema"."or""der %s"
 where "group" = ?1
   and "User Id" in (?, ?));
