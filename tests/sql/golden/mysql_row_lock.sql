-- candidates (avoided, full_keys, limit)
select seen.id, row_number() over (order by seen.id)
  from (select c.`id` as id,
               c.`priority` as priority,
               c.`retry_after` as retry_after
          from `app`.`jobs` as c
         where (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
           and (c.`id` in %(avoided)s) is not true
           and (unhex(sha2(weight_string(c.`partition_key` as char(1024)), 256)) in %(full_keys)s) is not true
         order by c.`priority`, c.`retry_after`, c.`id`
         limit %(limit)s) as seen
 order by seen.priority, seen.retry_after, seen.id;

-- candidates, by their index (avoided, full_keys, limit)
select seen.id, row_number() over (order by seen.id)
  from (select c.`id` as id,
               c.`priority` as priority,
               c.`retry_after` as retry_after
          from `app`.`jobs` as c force index (`claim's ``index```)
         where (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
           and (c.`id` in %(avoided)s) is not true
           and (unhex(sha2(weight_string(c.`partition_key` as char(1024)), 256)) in %(full_keys)s) is not true
         order by c.`priority`, c.`retry_after`, c.`id`
         limit %(limit)s) as seen
 order by seen.priority, seen.retry_after, seen.id;

-- hold (ids, limit)
select t.`id`,
       cast(ifnull(t.`attempt`, 0) + 1 as signed),
       t.`partition_key`,
       unhex(sha2(weight_string(t.`partition_key` as char(1024)), 256)),
       cast(t.`group` as char),
       json_quote(concat(replace(cast(t.`headers` as char), ' ', 'T'))),
       json_quote(concat(replace(cast(t.`payload` as char), ' ', 'T')))
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   and (t.`retry_after` is null or t.`retry_after` <= utc_timestamp(6))
 order by t.`id`
 limit %(limit)s
   for update skip locked;

-- ack (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- drop (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- retry (id, delay, attempt, reason)
update `app`.`jobs` as t
   set t.`retry_after` = ifnull(utc_timestamp(6) + interval %(delay)s microsecond, t.`retry_after`),
       t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`id` = %(id)s;

-- snooze (id, delay, attempt)
update `app`.`jobs` as t
   set t.`retry_after` = ifnull(utc_timestamp(6) + interval %(delay)s microsecond, t.`retry_after`),
       t.`attempt` = %(attempt)s
 where t.`id` = %(id)s;

-- bury (id, attempt, reason)
insert into `app`.`dead` (`id`, `payload`, `headers`, `group`, `partition_key`, `priority`, `retry_after`, `attempt`, `locked_until`, `last_error`)
select t.`id`, t.`payload`, t.`headers`, t.`group`, t.`partition_key`, t.`priority`, t.`retry_after`, %(attempt)s, t.`locked_until`, ifnull(%(reason)s, t.`last_error`)
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- release (id, attempt)
update `app`.`jobs` as t
   set t.`attempt` = %(attempt)s
 where t.`id` = %(id)s
   and ifnull(t.`attempt`, 0) <> %(attempt)s;

-- recount (id, attempt, reason)
update `app`.`jobs` as t
   set t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`id` = %(id)s;

-- look (id)
select 1
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- remove (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;
