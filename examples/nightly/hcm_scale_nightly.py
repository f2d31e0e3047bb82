"""An Airflow DAG: one run a night, and the list of flagged nodes.

The worker calls hcm-scale of an environment of its own, so that torch and Airflow need not agree on versions.
FOLDER holds nightly.sh, conf/ and the tables; BIN is the folder of `hcm-scale`.

    airflow dags test hcm_scale_nightly 2026-11-17
"""

import os

import pendulum
from airflow.exceptions import AirflowFailException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag, task

FOLDER = os.environ.get("HCM_FOLDER", "/srv/hcm")
BIN = os.environ.get("HCM_BIN", "/srv/hcm/venv/bin")
ONCE_ONLY = (2, 3)  # wrong input, and a check of fail_on: trying again does not help


@dag(
    dag_id="hcm_scale_nightly",
    schedule="30 2 * * *",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": pendulum.duration(minutes=10)},
)
def nightly() -> None:
    run = BashOperator(
        task_id="run",
        cwd=FOLDER,
        env={"PATH": f"{BIN}:/usr/bin:/bin"},
        append_env=True,
        # the status goes on to the next task, which says whether trying again helps; 1 and signals are tried again here
        bash_command="./nightly.sh {{ ds }} 1>&2; s=$?; echo $s; case $s in 0|2|3) ;; *) exit $s ;; esac",
        execution_timeout=pendulum.duration(hours=4),
    )

    @task(retries=0)
    def judge(status: str) -> None:
        if int(status) in ONCE_ONLY:
            raise AirflowFailException(f"hcm-scale ended with status {status}; the log of the task `run` says why")

    judge(run.output)


nightly()
