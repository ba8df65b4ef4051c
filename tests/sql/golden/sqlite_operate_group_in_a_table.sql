-- counts (group)
with recursive steps (level) as (
  select min("priority") from "app"."jobs" where "group" = ?1 and true
  union all
  select (select min("priority") from "app"."jobs" where "group" = ?1 and "priority" > steps.level)
    from steps
   where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit 1000
), undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from priorities cross join "app"."jobs" where "group" = ?1 and "retry_after" is null and "priority" = priorities.level
          union all
          select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from "app"."jobs" where "group" = ?1 and "retry_after" is null and "priority" is null
           limit 110000)
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "retry_after" as due from priorities cross join "app"."jobs" where "group" = ?1 and "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" = priorities.level
          union all
          select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "retry_after" as due from "app"."jobs" where "group" = ?1 and "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" is null
           limit 110000)
), later as (
  select count(*) as seen
    from (select 1 from priorities cross join "app"."jobs" where "group" = ?1 and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" = priorities.level
          union all
          select 1 from "app"."jobs" where "group" = ?1 and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" is null
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
select count(*) filter (where "group" = ?1 and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))),
       count(*) filter (where "group" = ?1 and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)),
       count(*) filter (where "group" = ?1 and true and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now')),
       count(*) = 110000,
       count(*) = 110000,
       (julianday('now') - julianday(min("retry_after") filter (where "group" = ?1 and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and not coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)))) * 86400.0
  from (select * from "app"."jobs" order by "id" limit 110000);

-- dead (group)
select count(*) filter (where "group" = ?1), count(*) = 110000
  from (select * from "app"."dead" limit 110000);

-- dead, without an index (group)
select count(*) filter (where "group" = ?1), count(*) = 110000
  from (select * from "app"."dead" limit 110000);

-- failures (group, error)
select error, count(*), substr(min(due), 1, 19), substr(max(due), 1, 19), min(id), count(*) over (), sum(count(*)) over ()
  from (select substr(d."last_error", 1, min(200, coalesce(nullif(instr(d."last_error", char(10)), 0) - 1, 200))) as error,
               d."retry_after" as due,
               d."id" as id
          from "app"."dead" as d
         where d."group" = :group
          and (:error is null or instr(d."last_error", :error) > 0)
         order by d."id" desc
         limit 110000)
 group by error
 order by count(*) desc, error
 limit 50;

-- choose (group, error, limit)
select d."id"
  from "app"."dead" as d
 where d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
 limit :limit;

-- choose, of a list (id x 2, group, error, limit)
select d."id"
  from "app"."dead" as d
 where d."id" in (:id0, :id1)
   and d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
 limit :limit;

-- stuck (id x 2)
select "id"
  from "app"."jobs"
 where "id" in (:id0, :id1);

-- requeue (id x 2, group, error)
insert into "app"."jobs" ("id", "payload", "headers", "group", "partition_key", "priority", "retry_after", "attempt", "locked_until", "last_error")
select d."id",
       d."payload",
       d."headers",
       d."group",
       d."partition_key",
       d."priority",
       null,
       0,
       coalesce(nullif(iif(d."locked_until" < '1900-01-01', d."locked_until", ''), ''), strftime('%Y-%m-%d %H:%M:%f', 'now', '+30.000 seconds', '-365000 days')),
       d."last_error"
  from "app"."dead" as d
 where d."id" in (:id0, :id1)
   and d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
 order by d."id"
on conflict do nothing
returning "id", case typeof("partition_key") when 'text' then "partition_key" when 'real' then iif("partition_key" = cast("partition_key" as integer), cast("partition_key" as integer), "partition_key") else "partition_key" end;

-- remove (id x 2)
delete from "app"."dead" as d
 where d."id" in (:id0, :id1);

-- purge (id x 2, group, error)
delete from "app"."dead" as d
 where d."id" in (:id0, :id1)
   and d."group" = :group
   and (:error is null or instr(d."last_error", :error) > 0)
returning "id";

-- waiting (id x 2, group)
select d."id"
  from "app"."jobs" as d
 where d."id" in (:id0, :id1)
   and d."group" = :group;

-- idle (id x 2, group)
select d."id"
  from "app"."jobs" as d
 where d."id" in (:id0, :id1)
   and d."group" = :group
   and (d."locked_until" is null or d."locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- park (id x 2, reason)
insert into "app"."dead" ()
select 
  from "app"."jobs" as d
 where d."id" in (:id0, :id1);

-- parked (id x 2)
delete from "app"."jobs" as d
 where d."id" in (:id0, :id1);
