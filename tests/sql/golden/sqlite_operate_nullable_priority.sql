-- counts ()
with recursive steps (level) as (
  select min("priority") from "app"."jobs" where true
  union all
  select (select min("priority") from "app"."jobs" where "priority" > steps.level)
    from steps
   where steps.level is not null
), priorities as materialized (
  select level from steps where level is not null limit 1000
), undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from priorities cross join "app"."jobs" where "retry_after" is null and "priority" = priorities.level
          union all
          select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from "app"."jobs" where "retry_after" is null and "priority" is null
           limit 110000)
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "retry_after" as due from priorities cross join "app"."jobs" where "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" = priorities.level
          union all
          select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "retry_after" as due from "app"."jobs" where "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" is null
           limit 110000)
), later as (
  select count(*) as seen
    from (select 1 from priorities cross join "app"."jobs" where "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" = priorities.level
          union all
          select 1 from "app"."jobs" where "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') and "priority" is null
           limit 100001)
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = 110000 or past.seen = 110000 or (select count(*) = 1000 from priorities),
       (select count(*) = 1000 from priorities),
       (julianday('now') - julianday(past.oldest)) * 86400.0
  from undated, past, later;

-- counts_by_id ()
select count(*) filter (where true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))),
       count(*) filter (where true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)),
       count(*) filter (where true and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now')),
       count(*) = 110000,
       count(*) = 110000,
       (julianday('now') - julianday(min("retry_after") filter (where true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and not coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)))) * 86400.0
  from (select * from "app"."jobs" order by "id" limit 110000);
