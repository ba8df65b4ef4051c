-- candidates (group, avoided, limit)
select c.`User Id`
  from `My Schema`.`or"der %%s` as c
 where c.`group` = %(group)s
   and (c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and (c.`User Id` in %(avoided)s) is not true
 order by c.`priority`, c.`%%(id)s`, c.`User Id`
 limit %(limit)s;

-- candidates, full lanes left out (group, avoided, full_keys, limit)
select c.`User Id`
  from `My Schema`.`or"der %%s` as c
 where c.`group` = %(group)s
   and (c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and (c.`User Id` in %(avoided)s) is not true
   and (unhex(sha2(weight_string(c.`a"b` as char(255)), 256)) in %(full_keys)s) is not true
 order by c.`priority`, c.`%%(id)s`, c.`User Id`
 limit %(limit)s;

-- take (ids, group)
select c.`User Id`,
       ifnull(c.`locked_until` >= '1900-01-01', 0),
       cast(cast(greatest(utc_timestamp(6) + interval 30000002 - mod(microsecond(utc_timestamp(6)), 2) microsecond,
           case when c.`locked_until` >= '1900-01-01'
                then c.`locked_until` + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                when c.`locked_until` >= '1000-01-01'
                then c.`locked_until` + interval 365000 day + interval 2 - mod(microsecond(c.`locked_until`), 2) microsecond
                else utc_timestamp(6) end) as datetime(6)) as char),
       cast(ifnull(c.`attempt`, 0) + 1 as signed),
       c.`a"b`,
       unhex(sha2(weight_string(c.`a"b` as char(255)), 256)),
       cast(c.`group` as char),
       c.`headers`,
       c.`pay%%load`
  from `My Schema`.`or"der %%s` as c force index (primary)
 where c.`User Id` in %(ids)s
   and c.`group` = %(group)s
   and (c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
 order by c.`User Id`
   for update skip locked;

-- claim (ids, token)
update `My Schema`.`or"der %%s` as t force index (primary)
   set t.`locked_until` = %(token)s,
       t.`attempt` = ifnull(t.`attempt`, 0) + 1
 where t.`User Id` in %(ids)s;

-- claimed (ids)
select t.`User Id`,
       ifnull(t.`locked_until` > utc_timestamp(6), 0),
       cast(t.`locked_until` as char),
       cast(t.`attempt` as signed),
       t.`a"b`,
       unhex(sha2(weight_string(t.`a"b` as char(255)), 256)),
       cast(t.`group` as char),
       t.`headers`,
       t.`pay%%load`
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s;

-- lease_end ()
select cast(cast(utc_timestamp(6) + interval 30000003 - mod(microsecond(utc_timestamp(6)), 2) microsecond as datetime(6)) as char);

-- take_to_extend (ids, token, new)
select t.`User Id`
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s
   and t.`locked_until` < %(new)s
 order by t.`User Id`
   for update skip locked;

-- extend (ids, token, new)
update `My Schema`.`or"der %%s` as t force index (primary)
   set t.`locked_until` = %(new)s
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- hold_all (ids, token)
select count(*)
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s
   for update skip locked;

-- held (ids, tokens)
select t.`User Id`, cast(t.`locked_until` as char)
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` in %(tokens)s
 order by t.`User Id`;

-- held, locked (ids, tokens)
select t.`User Id`, cast(t.`locked_until` as char)
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` in %(tokens)s
 order by t.`User Id`
   for update skip locked;

-- ack (ids, token)
delete t
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- retry (ids, token, delay, reason)
update `My Schema`.`or"der %%s` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day,
       t.`%%(id)s` = ifnull(utc_timestamp(6) + interval %(delay)s microsecond, t.`%%(id)s`),
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- snooze (ids, token, delay, attempt)
update `My Schema`.`or"der %%s` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day,
       t.`%%(id)s` = ifnull(utc_timestamp(6) + interval %(delay)s microsecond, t.`%%(id)s`),
       t.`attempt` = %(attempt)s
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- bury (ids, token, reason)
insert into `dead` (`User Id`, `pay%%load`, `headers`, `group`, `a"b`, `priority`, `%%(id)s`, `attempt`, `locked_until`, `last_error`)
select t.`User Id`, t.`pay%%load`, t.`headers`, t.`group`, t.`a"b`, t.`priority`, t.`%%(id)s`, t.`attempt`, t.`locked_until` - interval 365000 day, ifnull(%(reason)s, t.`last_error`)
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- remove (ids, token)
delete t
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- release (ids, token, attempt)
update `My Schema`.`or"der %%s` as t force index (primary)
   set t.`locked_until` = t.`locked_until` - interval 365000 day,
       t.`attempt` = %(attempt)s
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- recount (ids, token, attempt, reason)
update `My Schema`.`or"der %%s` as t force index (primary)
   set t.`attempt` = %(attempt)s,
       t.`last_error` = ifnull(%(reason)s, t.`last_error`)
 where t.`User Id` in %(ids)s
   and t.`locked_until` = %(token)s;

-- look (ids)
select t.`User Id`, cast(cast(t.`locked_until` + interval 365000 day as datetime(6)) as char)
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s
 order by t.`User Id`
   for update;

-- backlog (group, ids)
select exists (select 1 from `My Schema`.`or"der %%s` as t where t.`group` = %(group)s and t.`%%(id)s` is null)
       or exists (select 1 from `My Schema`.`or"der %%s` as t where t.`group` = %(group)s and t.`%%(id)s` <= utc_timestamp(6)),
       (select count(*) from (select 1 from `My Schema`.`or"der %%s` as t where t.`group` = %(group)s and t.`%%(id)s` > utc_timestamp(6) limit 100000) as later),
       exists (select 1 from `My Schema`.`or"der %%s` as t where t.`group` = %(group)s and t.`User Id` in %(ids)s);

-- waiting (group, limit)
select seen, later, held, free, cast(first as char),
       timestampdiff(microsecond, utc_timestamp(6), first) / 1e6,
       if(seen = 0, (select quote(o.`group`) from `My Schema`.`or"der %%s` as o limit 1), null)
  from (select count(*) as seen, count(if(later, 1, null)) as later, count(if(held, 1, null)) as held,
               count(if(later or held, null, 1)) as free, min(if(later, due, null)) as first
          from (select c.`%%(id)s` as due, ifnull(c.`%%(id)s` > utc_timestamp(6), 0) as later,
                       ifnull(c.`locked_until` > utc_timestamp(6), 0) as held
                  from `My Schema`.`or"der %%s` as c
           where c.`group` = %(group)s
                 order by c.`priority`, c.`%%(id)s`, c.`User Id`
                 limit %(limit)s) as looked_at) as summed;
