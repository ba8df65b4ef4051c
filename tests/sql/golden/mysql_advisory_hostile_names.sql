-- candidates (group, avoided, full_keys, busy, limit)
select c.`User Id`, concat(ifnull(cast(c.`User Id` as char character set utf8mb4), ''), '-', ifnull(cast(c.`a"b` as char character set utf8mb4), ''))
  from `My Schema`.`or"der %%s` as c
 where c.`group` = %(group)s
   and (c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
   and (c.`User Id` in %(avoided)s) is not true
   and (unhex(sha2(weight_string(c.`a"b` as char(1024)), 256)) in %(full_keys)s) is not true
   and (cast(concat(ifnull(cast(c.`User Id` as char character set utf8mb4), ''), '-', ifnull(cast(c.`a"b` as char character set utf8mb4), '')) as binary) in %(busy)s) is not true
 order by c.`priority`, c.`%%(id)s`, c.`User Id`
 limit %(limit)s;

-- candidates, by their index (group, avoided, full_keys, busy, limit)
select c.`User Id`, concat(ifnull(cast(c.`User Id` as char character set utf8mb4), ''), '-', ifnull(cast(c.`a"b` as char character set utf8mb4), ''))
  from `My Schema`.`or"der %%s` as c force index (`claim's ``index```)
 where c.`group` = %(group)s
   and (c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
   and (c.`User Id` in %(avoided)s) is not true
   and (unhex(sha2(weight_string(c.`a"b` as char(1024)), 256)) in %(full_keys)s) is not true
   and (cast(concat(ifnull(cast(c.`User Id` as char character set utf8mb4), ''), '-', ifnull(cast(c.`a"b` as char character set utf8mb4), '')) as binary) in %(busy)s) is not true
 order by c.`priority`, c.`%%(id)s`, c.`User Id`
 limit %(limit)s;

-- lock_first (name0, name1)
select case when ifnull(is_used_lock(%(name0)s), 0) <> connection_id() and get_lock(%(name0)s, 0) = 1 then 0
            when ifnull(is_used_lock(%(name1)s), 0) <> connection_id() and get_lock(%(name1)s, 0) = 1 then 1 end;

-- take (id, group)
select concat(ifnull(cast(t.`User Id` as char character set utf8mb4), ''), '-', ifnull(cast(t.`a"b` as char character set utf8mb4), ''))
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s
   and t.`group` = %(group)s
   and (t.`%%(id)s` is null or t.`%%(id)s` <= utc_timestamp(6))
   for update skip locked;

-- count (id)
update `My Schema`.`or"der %%s` as t
   set t.`attempt` = ifnull(t.`attempt`, 0) + 1
 where t.`User Id` = %(id)s;

-- taken (id)
select t.`User Id`,
       cast(t.`attempt` as signed),
       t.`a"b`,
       unhex(sha2(weight_string(t.`a"b` as char(1024)), 256)),
       cast(t.`group` as char),
       json_quote(concat(replace(cast(t.`headers` as char), ' ', 'T'))),
       json_quote(concat(replace(cast(t.`pay%%load` as char), ' ', 'T')))
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s;

-- ack (id)
delete t
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s;

-- drop (id)
delete t
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s;

-- retry (id, delay, attempt, reason)
update `My Schema`.`or"der %%s` as t
   set t.`%%(id)s` = ifnull(utc_timestamp(6) + interval %(delay)s microsecond, t.`%%(id)s`),
       t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`User Id` = %(id)s;

-- snooze (id, delay, attempt)
update `My Schema`.`or"der %%s` as t
   set t.`%%(id)s` = ifnull(utc_timestamp(6) + interval %(delay)s microsecond, t.`%%(id)s`),
       t.`attempt` = %(attempt)s
 where t.`User Id` = %(id)s;

-- bury (id, attempt, reason)
insert into `dead` (`User Id`, `pay%%load`, `headers`, `group`, `a"b`, `priority`, `%%(id)s`, `attempt`, `locked_until`, `last_error`)
select t.`User Id`, t.`pay%%load`, t.`headers`, t.`group`, t.`a"b`, t.`priority`, t.`%%(id)s`, %(attempt)s, t.`locked_until`, ifnull(%(reason)s, t.`last_error`)
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s;

-- release (id, attempt)
update `My Schema`.`or"der %%s` as t
   set t.`attempt` = %(attempt)s
 where t.`User Id` = %(id)s
   and ifnull(t.`attempt`, 0) <> %(attempt)s;

-- recount (id, attempt, reason)
update `My Schema`.`or"der %%s` as t
   set t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`User Id` = %(id)s;

-- look (id)
select 1
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s;

-- remove (id)
delete t
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` = %(id)s;
