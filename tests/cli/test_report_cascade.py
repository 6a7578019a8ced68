"""The report says of a cascade which two variants it consists of, and how much the second one answers."""

from __future__ import annotations

import msgspec
from tests.support.pages.reports import subject_of
from tests.support.profiles import variant

from gnnserve_api.files.profile import CascadeProfile, Profile
from gnnserve_cli.report.build import build_report
from gnnserve_cli.report.captions import costs
from gnnserve_cli.report.html import build_page

FIRST, THEN = variant(8, p50_ms=0.05), variant(1)
CASCADE = msgspec.structs.replace(
    FIRST,
    name="x8-then-x1-p5",
    family="cascade",
    factor=1,
    fanouts=(),
    cascade=CascadeProfile(first="x8", then="x1", passed_on=0.0525),
)


def test_a_caption_names_the_stages_and_the_share() -> None:
    report = build_report(subject_of(THEN, FIRST, CASCADE), "gnnserve test")
    said = "x8-then-x1-p5 has the memory of x8 and of x1, which answered about 5.25 % of the validation nodes."
    assert said in costs(report.variants, seeds=1024)
    assert said in build_page(report)
    assert "x8-then-x1-p5" not in costs(report.variants[:2], seeds=1024)


def test_models_of_widths_leave_it_out() -> None:
    """Its columns are those of one of two networks."""
    report = build_report(subject_of(THEN, FIRST, CASCADE), "gnnserve test")
    assert not any(prediction.variant == CASCADE.name for fit in report.models for prediction in fit.predictions)


def test_profiles_of_earlier_versions_have_none() -> None:
    profile = subject_of(THEN).profile
    older = msgspec.to_builtins(profile)
    for each in older["variants"]:
        del each["cascade"]
    assert msgspec.convert(older, Profile) == profile
