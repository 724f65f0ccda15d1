-- The entry point of the submission that wrote the row. Until now it was the detail of the history's first entry.
alter table onejob.jobs add column source text not null default '';
