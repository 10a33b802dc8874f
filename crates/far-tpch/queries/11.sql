-- Important stock: German stock of more than a ten-thousandth of its whole value.
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
HAVING sum(worth) > (SELECT sum(worth) * 0.0001 FROM stock)
ORDER BY value DESC
