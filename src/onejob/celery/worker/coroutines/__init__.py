"""The pool `-P onejob` of a worker: one event loop runs hundreds of coroutines, and takes many jobs at once."""
