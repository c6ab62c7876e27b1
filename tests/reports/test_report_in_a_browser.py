"""A browser shows the report, in light and in dark."""

import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("scheme", "paper"), [(1, 255), (0, 23)], ids=["light", "dark"])
def test_a_browser_shows_it(digits_report, scheme, paper, tmp_path):
    folder, _ = digits_report
    shot = tmp_path / "shot.png"
    result = subprocess.run(
        [
            CHROMIUM,
            *QUIET,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1000,2400",
            f"--screenshot={shot}",
            (folder / "report.html").as_uri(),
        ],
        capture_output=True,
        timeout=120,
    )
    assert shot.exists(), result.stderr
    pixels = tf.io.decode_png(shot.read_bytes(), channels=3).numpy().astype(int)
    background = pixels[3, 3]
    assert abs(int(background.mean()) - paper) < 4
    inked = np.abs(pixels - background).max(axis=2) > 60
    bands = inked.reshape(8, -1, inked.shape[1]).mean(axis=(1, 2))
    assert np.all(bands > 0.01) and inked.mean() < 0.5  # ink all the way down, and room around it
    blue = np.array([0, 114, 178] if scheme else [86, 180, 233])
    assert np.sum(np.abs(pixels - blue).max(axis=2) < 12) > 1000  # curve and histograms
