-- walk, from the first (group, held, limit)
select w.`a"b`,
       unhex(sha2(weight_string(w.`a"b` as char(255)), 256)),
       sha2(concat('shardrun:fdb333997cf59504:', unhex(sha2(weight_string(w.`a"b` as char(255)), 256))), 256),
       w.held,
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`User Id`,
       ifnull(f.`locked_until` > utc_timestamp(6), 0),
       timestampdiff(microsecond, utc_timestamp(6), f.`%%(id)s`) / 1e6
  from (select d.`a"b`, ifnull(d.`attempt` > 0, 0) as begun,
               0 as held,
               null as last_due,
               (select b.`User Id` from `My Schema`.`or"der %%s` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`a"b` = d.`a"b`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`User Id` in %(held)s) is not true
                 order by b.`priority`, b.`User Id` limit 1) as head
          from (select distinct c.`group`, c.`a"b`, c.`attempt`
            from `My Schema`.`or"der %%s` as c force index (`in ``order```)
           where c.`group` = %(group)s
             and c.`a"b` is not null
           order by c.`group`, c.`a"b`, c.`attempt`
           limit %(limit)s) as d
         limit %(limit)s) as w
  left join `My Schema`.`or"der %%s` as f force index (primary)
    on f.`User Id` = w.head
 order by w.`a"b`, w.begun desc, f.`priority`, f.`User Id`;

-- walk (after, group, held, limit)
select w.`a"b`,
       unhex(sha2(weight_string(w.`a"b` as char(255)), 256)),
       sha2(concat('shardrun:fdb333997cf59504:', unhex(sha2(weight_string(w.`a"b` as char(255)), 256))), 256),
       w.held,
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`User Id`,
       ifnull(f.`locked_until` > utc_timestamp(6), 0),
       timestampdiff(microsecond, utc_timestamp(6), f.`%%(id)s`) / 1e6
  from (select d.`a"b`, ifnull(d.`attempt` > 0, 0) as begun,
               0 as held,
               null as last_due,
               (select b.`User Id` from `My Schema`.`or"der %%s` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`a"b` = d.`a"b`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`User Id` in %(held)s) is not true
                 order by b.`priority`, b.`User Id` limit 1) as head
          from (select distinct c.`group`, c.`a"b`, c.`attempt`
            from `My Schema`.`or"der %%s` as c force index (`in ``order```)
           where c.`group` = %(group)s
             and c.`a"b` > %(after)s
           order by c.`group`, c.`a"b`, c.`attempt`
           limit %(limit)s) as d
         limit %(limit)s) as w
  left join `My Schema`.`or"der %%s` as f force index (primary)
    on f.`User Id` = w.head
 order by w.`a"b`, w.begun desc, f.`priority`, f.`User Id`;

-- these (strands, strand0, strand1, group, held, limit)
select w.`a"b`,
       unhex(sha2(weight_string(w.`a"b` as char(255)), 256)),
       sha2(concat('shardrun:fdb333997cf59504:', unhex(sha2(weight_string(w.`a"b` as char(255)), 256))), 256),
       w.held,
       timestampdiff(microsecond, utc_timestamp(6), w.last_due) / 1e6,
       f.`User Id`,
       ifnull(f.`locked_until` > utc_timestamp(6), 0),
       timestampdiff(microsecond, utc_timestamp(6), f.`%%(id)s`) / 1e6
  from (select d.`a"b`, ifnull(d.`attempt` > 0, 0) as begun,
               0 as held,
               null as last_due,
               (select b.`User Id` from `My Schema`.`or"der %%s` as b force index (`in ``order```)
                 where b.`group` = %(group)s
                   and b.`a"b` = d.`a"b`
                   and b.`attempt` <=> d.`attempt`
                   and (b.`User Id` in %(held)s) is not true
                 order by b.`priority`, b.`User Id` limit 1) as head
          from ((select distinct c.`a"b`, c.`attempt` from `My Schema`.`or"der %%s` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`a"b` in %(strands)s and c.`attempt` > 0)
           union all (select c.`a"b`, c.`attempt` from `My Schema`.`or"der %%s` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`a"b` = %(strand0)s and c.`attempt` = 0 limit 1)
           union all (select c.`a"b`, c.`attempt` from `My Schema`.`or"der %%s` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`a"b` = %(strand0)s and c.`attempt` is null limit 1)
           union all (select c.`a"b`, c.`attempt` from `My Schema`.`or"der %%s` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`a"b` = %(strand1)s and c.`attempt` = 0 limit 1)
           union all (select c.`a"b`, c.`attempt` from `My Schema`.`or"der %%s` as c force index (`in ``order```)
            where c.`group` = %(group)s and c.`a"b` = %(strand1)s and c.`attempt` is null limit 1)) as d
         limit %(limit)s) as w
  left join `My Schema`.`or"der %%s` as f force index (primary)
    on f.`User Id` = w.head
 order by w.`a"b`, w.begun desc, f.`priority`, f.`User Id`;

-- guard (name0, name1)
select get_lock(%(name0)s, 0), get_lock(%(name1)s, 0);

-- strands of rows (ids)
select t.`User Id`, unhex(sha2(weight_string(t.`a"b` as char(255)), 256))
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` in %(ids)s;

-- guard of a row (id)
select if(t.`a"b` is null, null, sha2(concat('shardrun:fdb333997cf59504:', unhex(sha2(weight_string(t.`a"b` as char(255)), 256))), 256))
  from `My Schema`.`or"der %%s` as t force index (primary)
 where t.`User Id` = %(id)s;

-- unlock ()
do release_all_locks();

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
                 order by c.`group`, c.`a"b`, c.`attempt`, c.`priority`, c.`User Id`
                 limit %(limit)s) as looked_at) as summed;

-- index ()
create index if not exists `or"der %s_claim_in_order` on `My Schema`.`or"der %s` (`group`, `a"b`, `attempt`, `priority`, `User Id`);

-- prefix (group, strand)
select x.id, x.is_free
  from ((select c.`User Id` as id,
                c.`priority` as priority,
                1 + ifnull(c.`locked_until` > utc_timestamp(6), 0) as begun,
                ((c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
                      and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))) as is_free
           from `My Schema`.`or"der %%s` as c force index (`in ``order```)
          where c.`group` = %(group)s and c.`a"b` = %(strand)s and c.`attempt` > 0
          order by c.`priority`, c.`User Id`
          limit 64)
        union all (select c.`User Id` as id,
                c.`priority` as priority,
                0 as begun,
                ((c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
                      and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))) as is_free
           from `My Schema`.`or"der %%s` as c force index (`in ``order```)
          where c.`group` = %(group)s and c.`a"b` = %(strand)s and c.`attempt` = 0
          order by c.`priority`, c.`User Id`
          limit 64)
        union all (select c.`User Id` as id,
                c.`priority` as priority,
                0 as begun,
                ((c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
                      and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))) as is_free
           from `My Schema`.`or"der %%s` as c force index (`in ``order```)
          where c.`group` = %(group)s and c.`a"b` = %(strand)s and c.`attempt` is null
          order by c.`priority`, c.`User Id`
          limit 64)) as x
 order by x.begun desc, x.priority, x.id
 limit 64;

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

-- rows of no strand (group, avoided, limit)
select c.`User Id`
  from `My Schema`.`or"der %%s` as c
 where c.`group` = %(group)s
   and (c.`%%(id)s` is null or c.`%%(id)s` <= utc_timestamp(6))
   and (c.`locked_until` is null or c.`locked_until` <= utc_timestamp(6))
   and c.`a"b` is null
   and (c.`User Id` in %(avoided)s) is not true
 order by c.`priority`, c.`%%(id)s`, c.`User Id`
 limit %(limit)s;

-- take rows of no strand (ids, group)
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
   and c.`a"b` is null
 order by c.`User Id`
   for update skip locked;
