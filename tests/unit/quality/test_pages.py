"""Which page is the one that is looked at first."""

from __future__ import annotations

from types import SimpleNamespace

from spark_jobs.quality import pages


def test_the_index_is_the_newest_batch_whoever_writes_last(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_batch_page", lambda row, *_, **__: f"page of {row.batch_id}")
    verdict = SimpleNamespace(page="<head></head>")
    for batch_id, newest in ((9, 9), (10, 10), (9, 10), (11, 11)):
        page = pages.write_pages(tmp_path / "quality", SimpleNamespace(batch_id=batch_id), {}, verdict)
        pages.write_index(tmp_path / "quality")
        assert (page.name, page.read_text()) == (f"batch-{batch_id}.html", f"page of {batch_id}")
        assert (tmp_path / "quality" / "index.html").read_text() == f"page of {newest}"
