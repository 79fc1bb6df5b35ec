"""The samples of all jobs: a file for each, named like its folder in the package."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from support.job import Form, Job

__all__ = ["FORMS", "JOBS", "TRAINED"]

# By the name of the estimator.
JOBS: dict[str, Job] = {
    job.estimator.__name__: job
    for path in sorted(Path(__file__).parent.glob("[!_]*.py"))
    for job in [import_module(f"{__name__}.{path.stem}").JOB]
}
TRAINED = {name: job for name, job in JOBS.items() if job.is_trained}
# By the name of the estimator and that of the form.
FORMS: dict[tuple[str, str], tuple[Job, Form]] = {
    (name, form): (job, rows) for name, job in JOBS.items() for form, rows in job.forms.items()
}
