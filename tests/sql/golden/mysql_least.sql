-- candidates (avoided, limit)
select c.`id`
  from `app`.`jobs` as c
 where (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and (c.`id` in %(avoided)s) is not true
 order by c.`id`
 limit %(limit)s;

-- take (ids)
select c.`id`,
       0,
       cast(cast(greatest(utc_timestamp(6) + interval 30000002 - mod(microsecond(utc_timestamp(6)), 2) microsecond,
           case when c.`locked_until` >= '1900-01-01'
                then c.`locked_until` + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                when c.`locked_until` >= '1000-01-01'
                then c.`locked_until` + interval 365000 day + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                else utc_timestamp(6) end) as datetime(6)) as char),
       1,
       null,
       null,
       null,
       null,
       null,
       c.`id`,
       c.`locked_until`
  from `app`.`jobs` as c force index (primary)
 where c.`id` in %(ids)s
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
 order by c.`id`
   for update skip locked;

-- claim (ids, token)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = %(token)s
 where t.`id` in %(ids)s;

-- claimed (ids)
select t.`id`,
       ifnull(t.`locked_until` > utc_timestamp(6), 0),
       cast(t.`locked_until` as char),
       1,
       null,
       null,
       null,
       null,
       null,
       t.`id`,
       t.`locked_until`
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s;

-- lease_end ()
select cast(cast(utc_timestamp(6) + interval 30000003 - mod(microsecond(utc_timestamp(6)), 2) microsecond as datetime(6)) as char);

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
delete t
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- retry (ids, token, delay)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = if(%(delay)s > 0,
         greatest(utc_timestamp(6) + interval %(delay)s microsecond, t.`locked_until` + interval 1 microsecond),
         t.`locked_until` - interval 365000 day)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- snooze (ids, token, delay)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = if(%(delay)s > 0,
         greatest(utc_timestamp(6) + interval %(delay)s microsecond, t.`locked_until` + interval 1 microsecond),
         t.`locked_until` - interval 365000 day)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- remove (ids, token)
delete t
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- release (ids, token)
update `app`.`jobs` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day
 where t.`id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- look (ids)
select t.`id`, cast(cast(t.`locked_until` + interval 365000 day as datetime(6)) as char)
  from `app`.`jobs` as t force index (primary)
 where t.`id` in %(ids)s
 order by t.`id`
   for update;

-- backlog (ids)
select exists (select 1 from `app`.`jobs` as t),
       0,
       exists (select 1 from `app`.`jobs` as t where t.`id` in %(ids)s);

-- waiting (limit)
select seen, later, held, free, cast(first as char),
       timestampdiff(microsecond, utc_timestamp(6), first) / 1e6,
       if(seen = 0, null, null)
  from (select count(*) as seen, count(if(later, 1, null)) as later, count(if(held, 1, null)) as held,
               count(if(later or held, null, 1)) as free, min(if(later, due, null)) as first
          from (select null as due, ifnull(null > utc_timestamp(6), 0) as later,
                       ifnull(c.`locked_until` > utc_timestamp(6), 0) as held
                  from `app`.`jobs` as c
                 order by c.`id`
                 limit %(limit)s) as looked_at) as summed;
