"""Spans leave in a thread of their own, from a queue with a bound; what does not leave is counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from fulcrum.gateway.tracing.collector_session import CollectorSession
from fulcrum.gateway.tracing.encode import encode

logger = logging.getLogger(__name__)

QUEUE_SPANS: Final = 4096
"""Most spans that wait to leave, about 2 KB each."""
_BATCH_SPANS: Final = 512
_EVERY_MILLISECONDS: Final = 2000.0
EXPORT_SECONDS: Final = 3.0
"""Longest try to send a batch, repetitions included, as long as the collector is silent."""


class _Exporter(OTLPSpanExporter):
    """The SDK's, with its settings from the environment, but for the encoder."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        sent = self._client.export(encode(spans)).success
        return SpanExportResult.SUCCESS if sent else SpanExportResult.FAILURE


class CountedExporter(SpanExporter):
    """Sends spans and counts what became of them; runs in the thread of its processor."""

    def __init__(self, url: str) -> None:
        # It logs each failure; the counter says that, and a line here when it begins and when it ends.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._url = url
        self._inner = _Exporter(endpoint=url, timeout=EXPORT_SECONDS, session=CollectorSession())
        self.exported = 0
        self.failed = 0
        self._failing = False
        self._leave_by: float | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        # A gateway that ends must not wait for a dead or slow collector batch by batch.
        if self._leave_by is not None and (self._failing or time.monotonic() > self._leave_by):
            self.failed += len(spans)
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing:
            self.failed += len(spans)
        else:
            self.exported += len(spans)
        if failing != self._failing:
            self._failing = failing
            if failing:
                logger.warning("traces_not_sent endpoint=%s", self._url)
            else:
                logger.info("traces_sent_again endpoint=%s", self._url)
        return result

    def leave(self) -> None:
        """From here on one failure, or `EXPORT_SECONDS` in all, end the sending."""
        self._leave_by = time.monotonic() + EXPORT_SECONDS

    def shutdown(self) -> None:
        self._inner.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class BoundedQueue(SpanProcessor):
    """Hands ended spans to the exporter's thread, and drops what is beyond `QUEUE_SPANS`; never waits."""

    def __init__(self, exporter: CountedExporter) -> None:
        self._exporter = exporter
        self._inner = BatchSpanProcessor(
            exporter,
            max_queue_size=QUEUE_SPANS,
            schedule_delay_millis=_EVERY_MILLISECONDS,
            max_export_batch_size=_BATCH_SPANS,
        )
        self._taken = 0
        self.dropped = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is done with a span before its end."""

    def on_end(self, span: ReadableSpan) -> None:
        # The exporter's own counts grow in its thread alone, these in the loop's: no lock is needed.
        if self._taken - self._exporter.exported - self._exporter.failed >= QUEUE_SPANS:
            self.dropped += 1
            return
        self._taken += 1
        self._inner.on_end(span)

    def shutdown(self) -> None:
        """Send what waits, for twice `EXPORT_SECONDS` at most: the batch under way, and those that begin in time.

        A collector that sends its answer byte by byte is never silent; the SDK would wait 30 s for it.
        """
        self._exporter.leave()
        ending = threading.Thread(target=self._inner.shutdown, name="traces-end", daemon=True)
        ending.start()
        ending.join(2 * EXPORT_SECONDS)
        if ending.is_alive():
            logger.warning("traces_given_up spans=%d", self._taken - self._exporter.exported - self._exporter.failed)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
