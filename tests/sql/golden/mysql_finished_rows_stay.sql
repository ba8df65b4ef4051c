-- candidates (avoided, limit)
select c.`id`
  from `app`.`jobs` as c
 where c.`processed_at` is null
   and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and (c.`id` in %(avoided)s) is not true
 order by c.`retry_after`, c.`id`
 limit %(limit)s;

-- take (ids)
select c.`id`,
       ifnull(c.`locked_until` >= '1900-01-01', 0),
       cast(cast(greatest(utc_timestamp(6) + interval 6000000 - mod(second(utc_timestamp(6)) * 1000000 + microsecond(utc_timestamp(6)), 2000000) microsecond,
           case when c.`locked_until` >= '1900-01-01'
                then c.`locked_until` + interval 2000000 - mod(second(c.`locked_until`) * 1000000 + microsecond(c.`locked_until`), 2000000) microsecond
                when c.`locked_until` >= '1000-01-01'
                then c.`locked_until` + interval 365000 day + interval 2000000 - mod(second(c.`locked_until`) * 1000000 + microsecond(c.`locked_until`), 2000000) microsecond
                else utc_timestamp(6) end) as datetime(0)) as char),
       cast(ifnull(c.`attempt`, 0) + 1 as signed),
       null,
       null,
       null,
       null,
       c.`payload`
  from `app`.`jobs` as c force index (primary)
 where c.`id` in %(ids)s
   and c.`processed_at` is null
   and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
 order by c.`id`
   for update skip locked;

-- claim (ids, token)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = %(token)s,
       t.`attempt` = ifnull(t.`attempt`, 0) + 1
 where t.`id` in %(ids)s;

-- claimed (ids)
select t.`id`,
       ifnull(t.`locked_until` > utc_timestamp(6), 0),
       cast(t.`locked_until` as char),
       cast(t.`attempt` as signed),
       null,
       null,
       null,
       null,
       t.`payload`
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s;

-- lease_end ()
select cast(cast(utc_timestamp(6) + interval 7000000 - mod(second(utc_timestamp(6)) * 1000000 + microsecond(utc_timestamp(6)), 2000000) microsecond as datetime(0)) as char);

-- take_to_extend (ids, token, new)
select t.`id`
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s
   and t.`locked_until` < %(new)s
 order by t.`id`
   for update skip locked;

-- extend (ids, token, new)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = %(new)s
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- hold_all (ids, token)
select count(*)
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s
   for update skip locked;

-- held (ids, tokens)
select t.`id`, cast(t.`locked_until` as char)
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` in %(tokens)s
 order by t.`id`;

-- held, locked (ids, tokens)
select t.`id`, cast(t.`locked_until` as char)
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` in %(tokens)s
 order by t.`id`
   for update skip locked;

-- ack (ids, token)
update `app`.`jobs` as t force index (primary)
   set t.`processed_at` = utc_timestamp(6)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- drop (ids, token, reason)
update `app`.`jobs` as t force index (primary)
   set t.`processed_at` = utc_timestamp(6),
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- retry (ids, token, delay, reason)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day,
       t.`retry_after` = ifnull(utc_timestamp(3) + interval ceiling(%(delay)s / 1000) * 1000 + 1000 microsecond, t.`retry_after`),
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- snooze (ids, token, delay, attempt)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day,
       t.`retry_after` = ifnull(utc_timestamp(3) + interval ceiling(%(delay)s / 1000) * 1000 + 1000 microsecond, t.`retry_after`),
       t.`attempt` = %(attempt)s
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- remove (ids, token)
delete t
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- release (ids, token, attempt)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day,
       t.`attempt` = %(attempt)s
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- recount (ids, token, attempt, reason)
update `app`.`jobs` as t force index (primary)
   set t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- look (ids)
select t.`id`, cast(cast(t.`locked_until` + interval 365000 day as datetime(0)) as char)
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
 order by t.`id`
   for update;

-- backlog (ids)
select exists (select 1 from `app`.`jobs` as t where t.`processed_at` is null and t.`retry_after` is null)
       or exists (select 1 from `app`.`jobs` as t where t.`processed_at` is null and t.`retry_after` <= utc_timestamp(6)),
       (select count(*) from (select 1 from `app`.`jobs` as t where t.`processed_at` is null and t.`retry_after` > utc_timestamp(6) limit 100000) as later),
       exists (select 1 from `app`.`jobs` as t where t.`processed_at` is null and t.`id` in %(ids)s);

-- waiting (limit)
select seen, later, held, free, cast(first as char),
       timestampdiff(microsecond, utc_timestamp(6), first) / 1e6,
       if(seen = 0, null, null)
  from (select count(*) as seen, count(if(later, 1, null)) as later, count(if(held, 1, null)) as held,
               count(if(later or held, null, 1)) as free, min(if(later, due, null)) as first
          from (select c.`retry_after` as due, ifnull(c.`retry_after` > utc_timestamp(6), 0) as later,
                       ifnull(c.`locked_until` > utc_timestamp(6), 0) as held
                  from `app`.`jobs` as c
           where c.`processed_at` is null
                 order by c.`retry_after`, c.`id`
                 limit %(limit)s) as looked_at) as summed;
