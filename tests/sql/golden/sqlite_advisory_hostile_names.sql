-- candidates (group, busy x 2, full_key x 2, limit)
select "User Id",
       "a""b",
       case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end,
       cast("group" as text),
       "headers",
       cast("pay%load" as text),
       cast((case typeof("User Id") when 'blob' then lower(hex("User Id")) else coalesce(cast("User Id" as text), '') end || '-' || case typeof("a""b") when 'blob' then lower(hex("a""b")) else coalesce(cast("a""b" as text), '') end) as blob)
  from "My Schema"."or""der %s"
 where "group" = ?1
   and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and ("%(id)s" is null or (typeof("%(id)s") = 'text' and "%(id)s" glob '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '*[^ .:0-9]*' and replace(substr("%(id)s", 11), '+00:00', '') not glob '  *' and julianday("%(id)s") is not null))
   and "User Id" is not null
   and (cast((case typeof("User Id") when 'blob' then lower(hex("User Id")) else coalesce(cast("User Id" as text), '') end || '-' || case typeof("a""b") when 'blob' then lower(hex("a""b")) else coalesce(cast("a""b" as text), '') end) as blob) in (?, ?)) is not 1
   and (case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end in (?, ?)) is not 1
 order by "priority", "%(id)s", "User Id"
 limit ?;

-- count (id)
update "My Schema"."or""der %s"
   set "attempt" = coalesce("attempt", 0) + 1
 where "User Id" = ?
returning cast("attempt" as integer);

-- ack (id)
delete from "My Schema"."or""der %s"
 where "User Id" = :id;

-- drop (id)
delete from "My Schema"."or""der %s"
 where "User Id" = :id;

-- retry (id, delay, attempt, reason)
update "My Schema"."or""der %s"
   set "%(id)s" = iif(:delay is null, "%(id)s", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "User Id" = :id;

-- snooze (id, delay, attempt)
update "My Schema"."or""der %s"
   set "%(id)s" = iif(:delay is null, "%(id)s", strftime('%Y-%m-%d %H:%M:%f', 'now', printf('+%.3f seconds', :delay))),
       "attempt" = :attempt
 where "User Id" = :id;

-- bury (id, attempt, reason)
insert into "dead" ("User Id", "pay%load", "headers", "group", "a""b", "priority", "%(id)s", "attempt", "locked_until", "last_error")
select "User Id", "pay%load", "headers", "group", "a""b", "priority", "%(id)s", :attempt, "locked_until", coalesce(:reason, "last_error")
  from "My Schema"."or""der %s"
 where "User Id" = :id;

-- release (id, attempt)
update "My Schema"."or""der %s"
   set "attempt" = :attempt
 where "User Id" = :id;

-- recount (id, attempt, reason)
update "My Schema"."or""der %s"
   set "attempt" = :attempt,
       "last_error" = coalesce(:reason, "last_error")
 where "User Id" = :id;

-- remove (id)
delete from "My Schema"."or""der %s"
 where "User Id" = :id;
