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

-- dead (dead_group)
select count(*), count(*) = 100001
  from (select 1 from "app"."jobs" where "group" = ?1 limit 100001);

-- dead, without an index (dead_group)
select count(*) filter (where "group" = ?1), count(*) = 110000
  from (select * from "app"."jobs" order by "id" limit 110000);

-- failures (dead_group, error)
select error, count(*), substr(min(due), 1, 19), substr(max(due), 1, 19), min(id), count(*) over (), sum(count(*)) over ()
  from (select substr(d."last_error", 1, min(200, coalesce(nullif(instr(d."last_error", char(10)), 0) - 1, 200))) as error,
               d."retry_after" as due,
               d."id" as id
          from "app"."jobs" as d
         where d."group" = :dead_group
          and (:error is null or instr(d."last_error", :error) > 0)
         limit 110000)
 group by error
 order by count(*) desc, error
 limit 50;

-- choose (dead_group, error, limit)
select d."id"
  from "app"."jobs" as d
 where d."group" = :dead_group
   and (:error is null or instr(d."last_error", :error) > 0)
 limit :limit;

-- choose, of a list (id x 2, dead_group, error, limit)
select d."id"
  from "app"."jobs" as d
 where d."id" in (:id0, :id1)
   and d."group" = :dead_group
   and (:error is null or instr(d."last_error", :error) > 0)
 limit :limit;

-- stuck (id x 2, dead_group)
select d."id"
  from "app"."jobs" as d
 where d."id" in (:id0, :id1)
   and d."group" = :dead_group
   and d."locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now');

-- requeue (id x 2, group, dead_group, error)
update "app"."jobs" as d
   set "group" = :group,
       "attempt" = 0,
       "retry_after" = null
 where d."id" in (:id0, :id1)
   and d."group" = :dead_group
   and (d."locked_until" is null or d."locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
   and (:error is null or instr(d."last_error", :error) > 0)
returning "id", case typeof("partition_key") when 'text' then "partition_key" when 'real' then iif("partition_key" = cast("partition_key" as integer), cast("partition_key" as integer), "partition_key") else "partition_key" end;

-- purge (id x 2, dead_group, error)
delete from "app"."jobs" as d
 where d."id" in (:id0, :id1)
   and d."group" = :dead_group
   and (d."locked_until" is null or d."locked_until" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))
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

-- park (id x 2, reason, dead_group)
update "app"."jobs" as d
   set "group" = :dead_group,
       "last_error" = :reason,
       "locked_until" = iif(d."locked_until" >= '1900-01-01', strftime('%Y-%m-%d %H:%M:%f', d."locked_until", '-365000 days'), d."locked_until")
 where d."id" in (:id0, :id1);
