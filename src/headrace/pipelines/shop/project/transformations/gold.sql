-- Gold is computed from all events, so late, duplicate and reordered events do not change the result.
-- With the table properties, `headrace pipeline` computes only the orders that have new events.
-- Spark's own command computes everything.

-- Each event once: of events with the same number, the first in the topic.
CREATE TEMPORARY VIEW unique_events AS
SELECT order_id, seq, first.*
FROM (
  SELECT
    order_id,
    seq,
    min_by(
      struct(type, at, product, quantity, price_cents, amount_cents, channel),
      struct(partition, offset)
    ) AS first
  FROM order_events
  GROUP BY order_id, seq
);

CREATE MATERIALIZED VIEW revenue_per_minute
TBLPROPERTIES (
  'headrace.incremental.key' = 'order_id',
  'headrace.incremental.sums' = 'payments, revenue_cents'
) AS
SELECT
  date_trunc('MINUTE', at) AS minute,
  product,
  count_if(type = 'paid') AS payments,
  sum(if(type = 'paid', amount_cents, -amount_cents)) AS revenue_cents
FROM unique_events
WHERE type IN ('paid', 'refunded')
GROUP BY date_trunc('MINUTE', at), product;

-- The state of an order, computed from its events. The status never returns to an earlier one: a
-- shipped order that is placed again stays shipped. A correction replaces fields, not the status.
CREATE MATERIALIZED VIEW orders
TBLPROPERTIES ('headrace.incremental.key' = 'order_id') AS
SELECT
  order_id,
  max_by(type, array_position(array('placed', 'paid', 'shipped', 'cancelled', 'refunded'), type))
    FILTER (WHERE type <> 'corrected') AS status,
  max_by(at, seq) AS changed_at,
  coalesce(
    max_by(product, seq) FILTER (WHERE type = 'corrected' AND product IS NOT NULL),
    min_by(product, seq) FILTER (WHERE product IS NOT NULL)
  ) AS product,
  coalesce(
    max_by(quantity, seq) FILTER (WHERE type = 'corrected' AND quantity IS NOT NULL),
    min_by(quantity, seq) FILTER (WHERE quantity IS NOT NULL)
  ) AS quantity,
  min_by(channel, seq) FILTER (WHERE channel IS NOT NULL) AS channel,
  sum(CASE type WHEN 'paid' THEN amount_cents WHEN 'refunded' THEN -amount_cents END)
    AS paid_cents,
  count(*) AS events
FROM unique_events
GROUP BY order_id;
