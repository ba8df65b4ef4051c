-- take (ids, token)
select 1
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   and (t.`retry_after` is null or t.`retry_after` <= utc_timestamp(6))
   and sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`payload`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`partition_key`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`retry_after`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256) = %(token)s
   for update nowait;

-- stamped (ids)
select sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`payload`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`partition_key`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`retry_after`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256)
  from `app`.`jobs` as t
 where t.`id` in %(ids)s;

-- hold (ids, limit)
select t.`id`,
       cast(ifnull(t.`attempt`, 0) + 1 as signed),
       t.`partition_key`,
       unhex(sha2(weight_string(t.`partition_key` as char(1024)), 256)),
       cast(t.`group` as char),
       json_quote(concat(replace(cast(t.`headers` as char), ' ', 'T'))),
       json_quote(concat(replace(cast(t.`payload` as char), ' ', 'T'))),
       sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`payload`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`partition_key`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`retry_after`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256)
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   and (t.`retry_after` is null or t.`retry_after` <= utc_timestamp(6))
 order by t.`id`
 limit %(limit)s
   for update skip locked;

-- fate (ids, token)
select case when sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`payload`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`partition_key`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`retry_after`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256) = %(token)s then 'HELD'
            else 'FREE' end
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   for update nowait;

-- dead (ids)
select 1
  from `app`.`dead` as t
 where t.`id` in %(ids)s;
