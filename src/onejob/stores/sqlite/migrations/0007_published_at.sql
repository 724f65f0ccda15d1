-- When the message of a waiting job was sent last (null: a sweep has to send it). It is sent again only when it is known to
-- be gone. A ledger of earlier code sends each waiting job once.
alter table jobs add column published_at real;
