"""What `python -m elastic_tf` does, and the scripts in profiling/ and experiments/ with it.

The library never imports from here. A command is a module with a `main` that takes the words of a
command line, or those of the program where it is given none. It reads and checks them with what
loads in a moment (`names` has what the options name), and only then loads what does the work, by
an import in `main`. Behind them:

* `profile`: `profile_settings` (the options), `profiling` (does it), `profile_text` (as text),
  `settings_search` (the fastest runtime settings), `step_server` (a child process of the search).
* `train`: `run_settings` (the options), `training` (does it), `sources` (the images), `strategies`
  (one device or many), `harness` (model, rate, head), `step_bench` and `measurement` (what steps
  cost), `recording` (what is written of each epoch), `history` (what the epochs say of a run),
  `doubts` (what a result does not show).
* `compare`: `contenders` (what is asked for), `contest` (the plan and the tables), `trials`
  (trainings in child processes), `verdicts` (intervals over seeds).
* `plot`: `drawing` (does it, by `elastic_tf.plots`).
* `doctor`: `installation`, `machine`, `storage` (what is checked), `start_up` (a child process that
  trains a step).
"""
