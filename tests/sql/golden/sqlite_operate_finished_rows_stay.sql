-- counts ()
with recursive undated as (
  select count(*) as seen, count(*) filter (where held) as held
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held from "app"."jobs" where "processed_at" is null and "retry_after" is null limit 110000)
), past as (
  select count(*) as seen, count(*) filter (where held) as held, min(due) filter (where not held) as oldest
    from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held, "retry_after" as due from "app"."jobs" where "processed_at" is null and "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now') limit 110000)
), later as (
  select count(*) as seen
    from (select 1 from "app"."jobs" where "processed_at" is null and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now') limit 100001)
)
select undated.seen + past.seen,
       undated.held + past.held,
       later.seen,
       undated.seen = 110000 or past.seen = 110000 or 0,
       0,
       (julianday('now') - julianday(past.oldest)) * 86400.0
  from undated, past, later;

-- counts_by_id ()
select count(*) filter (where "processed_at" is null and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now'))),
       count(*) filter (where "processed_at" is null and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)),
       count(*) filter (where "processed_at" is null and true and "retry_after" > strftime('%Y-%m-%d %H:%M:%f', 'now')),
       count(*) = 110000,
       count(*) = 110000,
       (julianday('now') - julianday(min("retry_after") filter (where "processed_at" is null and true and ("retry_after" is null or "retry_after" <= strftime('%Y-%m-%d %H:%M:%f', 'now')) and not coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)))) * 86400.0
  from (select * from "app"."jobs" order by "id" desc limit 110000);
