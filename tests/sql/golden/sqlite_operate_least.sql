-- counts ()
select count(*), count(*) filter (where held), 0, count(*) = 110000, 0, null
  from (select coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0) as held
          from "app"."jobs"
         order by "id"
         limit 110000);

-- counts_by_id ()
select count(*) filter (where true),
       count(*) filter (where true and coalesce("locked_until" > strftime('%Y-%m-%d %H:%M:%f', 'now'), 0)),
       count(*) filter (where true and false),
       count(*) = 110000,
       count(*) = 110000,
       null
  from (select * from "app"."jobs" order by "id" limit 110000);
