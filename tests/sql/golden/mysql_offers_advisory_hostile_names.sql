-- take (ids, token, group)
select 1
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` in %(ids)s
   and t.`group` = %(group)s
   and (t.`%%(id)s` is null or t.`%%(id)s` <= utc_timestamp(6))
   and sha2(concat_ws(',', ifnull(sha2(t.`User Id`, 256), '-'), ifnull(sha2(t.`pay%%load`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`a"b`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`%%(id)s`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256) = %(token)s
   for update nowait;

-- stamped (ids)
select sha2(concat_ws(',', ifnull(sha2(t.`User Id`, 256), '-'), ifnull(sha2(t.`pay%%load`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`a"b`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`%%(id)s`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256)
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` in %(ids)s;

-- read (ids, group)
select t.`User Id`,
       cast(ifnull(t.`attempt`, 0) + 1 as signed),
       t.`a"b`,
       unhex(sha2(weight_string(t.`a"b` as char(1024)), 256)),
       cast(t.`group` as char),
       json_quote(concat(replace(cast(t.`headers` as char), ' ', 'T'))),
       json_quote(concat(replace(cast(t.`pay%%load` as char), ' ', 'T'))),
       sha2(concat_ws(',', ifnull(sha2(t.`User Id`, 256), '-'), ifnull(sha2(t.`pay%%load`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`a"b`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`%%(id)s`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256)
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` in %(ids)s
   and t.`group` = %(group)s
   and (t.`%%(id)s` is null or t.`%%(id)s` <= utc_timestamp(6));

-- key_of (ids)
select concat(ifnull(cast(t.`User Id` as char character set utf8mb4), ''), '-', ifnull(cast(t.`a"b` as char character set utf8mb4), ''))
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` in %(ids)s;

-- are_free (name0, name1)
select is_free_lock(%(name0)s), is_free_lock(%(name1)s);

-- fate (ids, token)
select case when sha2(concat_ws(',', ifnull(sha2(t.`User Id`, 256), '-'), ifnull(sha2(t.`pay%%load`, 256), '-'), ifnull(sha2(t.`headers`, 256), '-'), ifnull(sha2(t.`group`, 256), '-'), ifnull(sha2(t.`a"b`, 256), '-'), ifnull(sha2(t.`priority`, 256), '-'), ifnull(sha2(t.`%%(id)s`, 256), '-'), ifnull(sha2(t.`attempt`, 256), '-'), ifnull(sha2(t.`locked_until`, 256), '-'), ifnull(sha2(t.`last_error`, 256), '-')), 256) = %(token)s then 'HELD'
            else 'FREE' end
  from `My Schema`.`or"der %%s` as t
 where t.`User Id` in %(ids)s
   for update nowait;

-- dead (ids)
select 1
  from `dead` as t
 where t.`User Id` in %(ids)s;
