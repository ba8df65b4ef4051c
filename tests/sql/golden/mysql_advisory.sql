-- candidates (group, avoided, busy, limit)
select c.`id`, concat('it''s 100%% \\ {', 'x}', ' ', ifnull(cast(c.`partition_key` as char character set utf8mb4), ''))
  from `app`.`jobs` as c
 where c.`group` = %(group)s
   and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
   and (c.`id` in %(avoided)s) is not true
   and (cast(concat('it''s 100%% \\ {', 'x}', ' ', ifnull(cast(c.`partition_key` as char character set utf8mb4), '')) as binary) in %(busy)s) is not true
 order by c.`priority`, c.`retry_after`, c.`id`
 limit %(limit)s;

-- candidates, by their index (group, avoided, busy, limit)
select c.`id`, concat('it''s 100%% \\ {', 'x}', ' ', ifnull(cast(c.`partition_key` as char character set utf8mb4), ''))
  from `app`.`jobs` as c force index (`claim's ``index```)
 where c.`group` = %(group)s
   and (c.`retry_after` is null or c.`retry_after` <= utc_timestamp(6))
   and (c.`id` in %(avoided)s) is not true
   and (cast(concat('it''s 100%% \\ {', 'x}', ' ', ifnull(cast(c.`partition_key` as char character set utf8mb4), '')) as binary) in %(busy)s) is not true
 order by c.`priority`, c.`retry_after`, c.`id`
 limit %(limit)s;

-- lock_first (name0, name1)
select case when ifnull(is_used_lock(%(name0)s), 0) <> connection_id() and get_lock(%(name0)s, 0) = 1 then 0
            when ifnull(is_used_lock(%(name1)s), 0) <> connection_id() and get_lock(%(name1)s, 0) = 1 then 1 end;

-- take (id, group)
select concat('it''s 100%% \\ {', 'x}', ' ', ifnull(cast(t.`partition_key` as char character set utf8mb4), ''))
  from `app`.`jobs` as t
 where t.`id` = %(id)s
   and t.`group` = %(group)s
   and (t.`retry_after` is null or t.`retry_after` <= utc_timestamp(6))
   for update skip locked;

-- count (id)
update `app`.`jobs` as t
   set t.`attempt` = ifnull(t.`attempt`, 0) + 1
 where t.`id` = %(id)s;

-- taken (id)
select t.`id`,
       cast(t.`attempt` as signed),
       t.`partition_key`,
       null,
       cast(t.`group` as char),
       json_quote(concat(replace(cast(t.`headers` as char), ' ', 'T'))),
       json_quote(concat(replace(cast(t.`payload` as char), ' ', 'T')))
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

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

-- bury (id, attempt, reason, dead_group)
update `app`.`jobs` as t
   set t.`group` = %(dead_group)s,
       t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
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
