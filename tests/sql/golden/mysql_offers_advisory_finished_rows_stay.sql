-- take (ids, token)
select 1
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   and t.`processed_at` is null
   and sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`processed_at`, 256), '-')), 256) = %(token)s
   for update nowait;

-- stamped (ids)
select sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`processed_at`, 256), '-')), 256)
  from `app`.`jobs` as t
 where t.`id` in %(ids)s;

-- read (ids)
select t.`id`,
       cast(ifnull(t.`attempt`, 0) + 1 as signed),
       null,
       null,
       null,
       null,
       null,
       t.`id`,
       ifnull(t.`attempt`, 0) + 1,
       t.`processed_at`,
       sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`processed_at`, 256), '-')), 256)
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   and t.`processed_at` is null;

-- key_of (ids)
select concat(ifnull(cast(t.`id` as char character set utf8mb4), ''))
  from `app`.`jobs` as t
 where t.`id` in %(ids)s;

-- are_free (name0, name1)
select is_free_lock(%(name0)s), is_free_lock(%(name1)s);

-- fate (ids, token)
select case when t.`processed_at` is not null then 'DONE'
            when sha2(concat_ws(',', ifnull(sha2(t.`id`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`processed_at`, 256), '-')), 256) = %(token)s then 'HELD'
            else 'FREE' end
  from `app`.`jobs` as t
 where t.`id` in %(ids)s
   for update nowait;
