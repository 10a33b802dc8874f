-- Important stock: German stock of more than a ten-thousandth of its whole value at scale factor 1,
-- and a larger part below. There are 10,000 suppliers for each unit of the scale factor.
WITH stock AS (
    SELECT ps_partkey, ps_supplycost * ps_availqty AS worth
    FROM partsupp
    JOIN supplier ON s_suppkey = ps_suppkey
    JOIN nation ON n_nationkey = s_nationkey
    WHERE n_name = 'GERMANY'
)
SELECT ps_partkey, sum(worth) AS value
FROM stock
GROUP BY ps_partkey
HAVING sum(worth) > (SELECT sum(worth) FROM stock) / (SELECT count(*) FROM supplier)
ORDER BY value DESC
