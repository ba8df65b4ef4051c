-- counts (group)
with recursive steps (level) as (
  select min("priority") from "My Schema"."or""der %s" where "group" = ?1 and true
  union all
  select (select min("priority") from "My Schema"."or""der %s" where "group" = ?1 and "priority" > steps.level)
    from steps
   where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit 1000
), undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from priorities cross join "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" is null and "priority" = priorities.level
          union all
          select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" is null and "priority" is null
           limit 110000)
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "%(id)s" as due from priorities cross join "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" = priorities.level
          union all
          select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "%(id)s" as due from "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" is null
           limit 110000)
), later as (
  select count(*) as seen
    from (select 1 from priorities cross join "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" > strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" = priorities.level
          union all
          select 1 from "My Schema"."or""der %s" where "group" = ?1 and "%(id)s" > strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" is null
           limit 100001)
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = 110000 or past.seen = 110000 or (select count(*) = 1000 from priorities),
       (select count(*) = 1000 from priorities),
       (julianday('now') - julianday(past.oldest)) * 86400.0
  from undated, past, later;

-- counts_by_id (group)
select count(*) filter (where "group" = ?1 and true and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))),
       count(*) filter (where "group" = ?1 and true and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)),
       count(*) filter (where "group" = ?1 and true and "%(id)s" > strftime('%Y-%m-%d %H:%M:%f', 'now')),
       count(*) = 110000,
       count(*) = 110000,
       (julianday('now') - julianday(min("%(id)s") filter (where "group" = ?1 and true and ("%(id)s" is null or "%(id)s" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and not coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)))) * 86400.0
  from (select * from "My Schema"."or""der %s" order by "User Id" limit 110000);

-- dead (group)
select count(*) filter (where "group" = ?1), count(*) = 110000
  from (select * from "dead" limit 110000);

-- dead, without an index (group)
select count(*) filter (where "group" = ?1), count(*) = 110000
  from (select * from "dead" limit 110000);

-- failures (group, error)
select error, count(*), substr(min(due), 1, 19), substr(max(due), 1, 19), min(id), count(*) over (), sum(count(*)) over ()
  from (select substr(d."last_error", 1, min(200, coalesce(nullif(instr(d."last_error", char(10)), 0) - 1, 200))) as error,
               d."%(id)s" as due,
               d."User Id" as id
          from "dead" as d
         where d."group" = :group
          and (:error is null or instr(d."last_error", :error) > 0)
         order by d."User Id" desc
         limit 110000)
 group by error
 order by count(*) desc, error
 limit 50;

-- choose (group, error, limit)
select d."User Id"
  from "dead" as d
 where d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
 limit :limit;

-- choose, of a list (id x 2, group, error, limit)
select d."User Id"
  from "dead" as d
 where d."User Id" in (:id0, :id1)
   and d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
 limit :limit;

-- stuck (id x 2)
select "User Id"
  from "My Schema"."or""der %s"
 where "User Id" in (:id0, :id1);

-- requeue (id x 2, group, error)
insert into "My Schema"."or""der %s" ("User Id", "pay%load", "headers", "group", "a""b", "priority", "%(id)s", "attempt", "locked_until", "last_error")
select d."User Id",
       d."pay%load",
       d."headers",
       d."group",
       d."a""b",
       d."priority",
       null,
       0,
       coalesce(nullif(iif(d."locked_until" < '1900-01-01', d."locked_until", ''), ''), strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds', '-365000 days')),
       d."last_error"
  from "dead" as d
 where d."User Id" in (:id0, :id1)
   and d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
 order by d."User Id"
on conflict do nothing
returning "User Id", case typeof("a""b") when 'text' then "a""b" when 'real' then iif("a""b" = cast("a""b" as integer), cast("a""b" as integer), "a""b") else "a""b" end;

-- remove (id x 2)
delete from "dead" as d
 where d."User Id" in (:id0, :id1);

-- purge (id x 2, group, error)
delete from "dead" as d
 where d."User Id" in (:id0, :id1)
   and d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
returning "User Id";

-- waiting (id x 2, group)
select d."User Id"
  from "My Schema"."or""der %s" as d
 where d."User Id" in (:id0, :id1)
   and d."group" = :group;

-- idle (id x 2, group)
select d."User Id"
  from "My Schema"."or""der %s" as d
 where d."User Id" in (:id0, :id1)
   and d."group" = :group
   and (d."locked_until" is null or d."locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- park (id x 2, reason)
insert into "dead" ("User Id", "pay%load", "headers", "group", "a""b", "priority", "%(id)s", "attempt", "locked_until", "last_error")
select d."User Id",
       d."pay%load",
       d."headers",
       d."group",
       d."a""b",
       d."priority",
       d."%(id)s",
       d."attempt",
       iif(d."locked_until" >= '1900-01-01', strftime('%Y-%m-%d %H:%M:%f', d."locked_until", '-365000 days'), d."locked_until"),
       :reason
  from "My Schema"."or""der %s" as d
 where d."User Id" in (:id0, :id1);

-- parked (id x 2)
delete from "My Schema"."or""der %s" as d
 where d."User Id" in (:id0, :id1);
