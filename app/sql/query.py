"""One query by Spark SQL over the views of a flow.

Guarantees that a query only reads: a statement that is no query is refused before Spark runs any of
it. Views that a query does not name are not opened. Cost: the start of Spark, some seconds; each
view is read as often as the query names it.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from meander.app.driver.workers.spark_launcher import cause, spark_context
from meander.app.sql.catalog import Catalog, ViewName
from meander.connectors.spark.views import View, read_view
from meander.schemas.errors import MeanderError, SetupError

MASTER = "local[2]"
"""Spark's master: a small one, as a flow may run on the same machine."""
_OPTIONS = {
    # Unlike a flow's workers, tasks may share a process, half a second each.
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.log.level": "ERROR",
}
_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_STATEMENTS = ("Command", "ParsedStatement", "CompoundPlanStatement")
"""The plans that are no queries: commands, INSERT and scripts."""
_SPARK_LOGGER = "SQLQueryContextLogger"
_UNKNOWN = "TABLE_OR_VIEW_NOT_FOUND"


class SqlQuery:
    """A query whose views open as it names them."""

    def __init__(self, spark: SparkSession, catalog: Catalog, sample: int, folder: Path) -> None:
        """`sample` rows of a view decide on its columns. `folder` gets the marks of errors."""
        self._spark, self._catalog, self._sample, self._folder = spark, catalog, sample, folder
        # Spark logs the stack of each error, which becomes one sentence here.
        logging.getLogger(_SPARK_LOGGER).disabled = True
        self.views: list[ViewName] = []
        """The views that the query names."""
        self._opened = set[str]()

    def run(self, text: str, limit: int | None) -> pa.Table:
        """Return the rows of a query, `limit` at most. Raise SetupError for a wrong query, and
        MeanderError where it fails."""
        with _said():
            self._expect_query(text)
        frame = self._analysed(text)
        with _said():
            return (frame if limit is None else frame.limit(limit)).toArrow()

    @property
    def with_errors(self) -> list[ViewName]:
        """Return the views with rows that could not be read as a whole."""
        return [one for one in self.views if self._marker(one).exists()]

    def _analysed(self, text: str) -> DataFrame:
        """Return the frame of a query. Spark names one unknown view after the other."""
        while True:
            try:
                return self._spark.sql(text)
            except AnalysisException as error:
                name = _unknown_view(error)
                if name is None:
                    raise _refused(error) from error
            except PySparkException as error:
                raise _refused(error) from error
            if name in self._opened:
                raise SetupError(
                    f"view {name!r}", "its name stands without back-ticks", f"write `{name}`"
                )  # fmt: skip
            self._open(name)

    def _open(self, name: str) -> None:
        view = self._catalog.find(name)
        self.views.append(view)
        self._opened.add(name)
        opened = View.of(self._catalog.open(view), self._sample, str(self._marker(view)))
        quoted = name.replace("`", "``")
        read_view(self._spark, opened).createOrReplaceTempView(f"`{quoted}`")

    def _marker(self, view: ViewName) -> Path:
        return self._folder / f"errors-{self.views.index(view)}"

    def _expect_query(self, text: str) -> None:
        """Raise SetupError for a statement that is no query."""
        session = self._spark._jsparkSession
        left: list[JavaObject] = [session.sessionState().sqlParser().parsePlan(text)]
        gateway = self._spark.sparkContext._gateway
        while left:
            plan = left.pop()
            if any(is_instance_of(gateway, plan, f"{_PLANS}{one}") for one in _STATEMENTS):
                what = plan.getClass().getSimpleName()
                raise SetupError(
                    "query", f"it is no query ({what})", "meander sql only reads: use select"
                )
            children = plan.children()
            left += [children.apply(n) for n in range(children.size())]


@contextlib.contextmanager
def open_query(catalog: Catalog, sample: int) -> Iterator[SqlQuery]:
    """Start Spark for a block, and yield a query over the views of a flow."""
    with tempfile.TemporaryDirectory(prefix="meander-sql-") as folder:
        # Spark would make a folder for tables here.
        options = _OPTIONS | {"spark.sql.warehouse.dir": f"{folder}/tables"}
        with spark_context(MASTER, "meander sql", options=options) as context:
            yield SqlQuery(SparkSession(context), catalog, sample, Path(folder))


def view_columns(catalog: Catalog, view: ViewName, sample: int) -> list[tuple[str, str]]:
    """Return the names and types of the columns of a view, as Spark has them."""
    fields = View.of(catalog.open(view), sample).column_types.fields
    return [(one.name, one.dataType.simpleString()) for one in fields]


def listed_views(
    catalog: Catalog, sample: int
) -> Iterator[tuple[ViewName, str, list[tuple[str, str]] | MeanderError]]:
    """Yield each view, its name in a query, and its columns or why they are unknown."""
    for view in catalog.views:
        try:
            columns: list[tuple[str, str]] | MeanderError = view_columns(catalog, view, sample)
        except MeanderError as error:
            columns = error
        yield view, catalog.shown(view), columns


def _unknown_view(error: AnalysisException) -> str | None:
    """Return the name of the view that a query names and Spark does not know; None for another
    error."""
    if error.getCondition() != _UNKNOWN:
        return None
    name = (error.getMessageParameters() or {})["relationName"]
    # Spark writes each part in back-ticks. A topic may be named without them: a.b is one name.
    return name.replace("`.`", ".").strip("`").replace("``", "`")


def _refused(error: PySparkException) -> MeanderError:
    """Return the error of a query that Spark refuses, or that failed in a task."""
    report = str(error)
    if "Traceback" in report:
        return MeanderError("query", cause(report))
    return SetupError(
        "query", _sentence(report), "correct it; meander sql FLOW lists the views"
    )  # fmt: skip


@contextlib.contextmanager
def _said() -> Iterator[None]:
    """Raise the errors of Spark as one sentence."""
    try:
        yield
    except PySparkException as error:
        raise _refused(error) from error
    except Py4JJavaError as error:
        raise MeanderError("query", cause(str(error))) from error


def _sentence(report: str) -> str:
    """Return the first line of what Spark says, without its place in Spark's code.

    >>> _sentence("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. SQLSTATE: 42601 (line 1)")
    "Syntax error at or near 'x' (line 1)"
    """
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    first = lines[0] if lines else report
    if first.startswith("[") and "] " in first:
        first = first.partition("] ")[2]
    head, state, rest = first.partition(". SQLSTATE: ")
    return f"{head}{rest[5:].partition(';')[0]}" if state else first
