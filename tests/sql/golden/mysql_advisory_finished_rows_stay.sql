-- candidates (avoided, busy, limit)
select c.`id`, concat(ifnull(cast(c.`id` as char character set utf8mb4), ''))
  from `app`.`jobs` as c
 where c.`processed_at` is null
   and (c.`id` in %(avoided)s) is not true
   and (cast(concat(ifnull(cast(c.`id` as char character set utf8mb4), '')) as binary) in %(busy)s) is not true
 order by c.`id`
 limit %(limit)s;

-- candidates, by their index (avoided, busy, limit)
select c.`id`, concat(ifnull(cast(c.`id` as char character set utf8mb4), ''))
  from `app`.`jobs` as c force index (`claim's ``index```)
 where c.`processed_at` is null
   and (c.`id` in %(avoided)s) is not true
   and (cast(concat(ifnull(cast(c.`id` as char character set utf8mb4), '')) as binary) in %(busy)s) is not true
 order by c.`id`
 limit %(limit)s;

-- lock_first (name0, name1)
select case when ifnull(is_used_lock(%(name0)s), 0) <> connection_id() and get_lock(%(name0)s, 0) = 1 then 0
            when ifnull(is_used_lock(%(name1)s), 0) <> connection_id() and get_lock(%(name1)s, 0) = 1 then 1 end;

-- take (id)
select concat(ifnull(cast(t.`id` as char character set utf8mb4), ''))
  from `app`.`jobs` as t
 where t.`id` = %(id)s
   and t.`processed_at` is null
   for update skip locked;

-- count (id)
update `app`.`jobs` as t
   set t.`attempt` = ifnull(t.`attempt`, 0) + 1
 where t.`id` = %(id)s;

-- taken (id)
select t.`id`,
       cast(t.`attempt` as signed),
       null,
       null,
       null,
       null,
       null,
       t.`id`,
       t.`attempt`,
       t.`processed_at`
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- ack (id, attempt)
update `app`.`jobs` as t
   set t.`processed_at` = utc_timestamp(6),
       t.`attempt` = %(attempt)s
 where t.`id` = %(id)s;

-- drop (id, attempt)
update `app`.`jobs` as t
   set t.`processed_at` = utc_timestamp(6),
       t.`attempt` = %(attempt)s
 where t.`id` = %(id)s;

-- retry (id, attempt)
update `app`.`jobs` as t
   set t.`attempt` = %(attempt)s
 where t.`id` = %(id)s;

-- snooze (id, attempt)
update `app`.`jobs` as t
   set t.`attempt` = %(attempt)s
 where t.`id` = %(id)s;

-- release (id, attempt)
update `app`.`jobs` as t
   set t.`attempt` = %(attempt)s
 where t.`id` = %(id)s
   and ifnull(t.`attempt`, 0) <> %(attempt)s;

-- recount (id, attempt)
update `app`.`jobs` as t
   set t.`attempt` = %(attempt)s
 where t.`id` = %(id)s;

-- look (id)
select 1
  from `app`.`jobs` as t
 where t.`id` = %(id)s;

-- remove (id)
delete t
  from `app`.`jobs` as t
 where t.`id` = %(id)s;
