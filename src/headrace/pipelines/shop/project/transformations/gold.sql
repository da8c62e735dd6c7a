-- Gold is computed anew from all events in each run, so neither the order in which they came, nor
-- how often, nor how late, makes a difference.

-- Each event once: of those with the same number, the first in the topic.
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

CREATE MATERIALIZED VIEW revenue_per_minute AS
SELECT
  date_trunc('MINUTE', at) AS minute,
  product,
  count(*) AS payments,
  sum(amount_cents) AS revenue_cents
FROM unique_events
WHERE type = 'paid'
GROUP BY date_trunc('MINUTE', at), product;

-- The state of an order is what its events say, folded in the order of their numbers.
CREATE MATERIALIZED VIEW orders AS
SELECT
  order_id,
  max_by(type, seq) AS status,
  max_by(at, seq) AS changed_at,
  max_by(product, seq) FILTER (WHERE product IS NOT NULL) AS product,
  max_by(quantity, seq) FILTER (WHERE quantity IS NOT NULL) AS quantity,
  max_by(channel, seq) FILTER (WHERE channel IS NOT NULL) AS channel,
  sum(amount_cents) AS paid_cents,
  count(*) AS events
FROM unique_events
GROUP BY order_id;
