"""Compares the figures with histories that are small enough to be worked out by hand."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import measure
from measure import Grant

MS = 1_000_000
WINDOW = (0, 1000 * MS)


def summary(grants, contenders=2, refused=(), exclusive=True):
    grants = sorted(grants, key=lambda grant: grant.acquired)
    return measure.summary(grants, refused, WINDOW, contenders, exclusive)


def every(period, contenders, count, held=1, first=0):
    """Contenders take turns: there is a grant every `period` ms, and each hold lasts `held` ms."""
    starts = [(first + i * period) * MS for i in range(count)]
    return [Grant((0, i % contenders), at, at + held * MS) for i, at in enumerate(starts)]


class Waiting(unittest.TestCase):
    def waiting(self, jobs, moments=None):
        return measure.waiting(jobs, 0, [job.arrived for job in jobs] if moments is None else moments, 200)

    def test_a_queue_in_order(self):
        # A job is due every 10 ms and takes 5 ms, and the lock is handed over at once: nobody waits.
        figures = self.waiting([measure.Job(at * MS, at * MS, (at + 5) * MS) for at in range(10, 2010, 10)])
        self.assertEqual([figures[f"wait_{what}_ms"] for what in ("p50", "p99", "max")], [0, 0, 0])
        self.assertEqual((figures["failed_percent"], figures["overtaken_percent"]), (0, 0))
        self.assertEqual((figures["held_ms"], figures["note"]), (5, ""))

    def test_who_is_overtaken_and_who_fails(self):
        jobs = [
            measure.Job(30 * MS, 31 * MS, 36 * MS),
            measure.Job(20 * MS, 50 * MS, 55 * MS),  # overtaken by the job above
            measure.Job(40 * MS, 0, 90 * MS),  # its client gave up
        ]
        figures = self.waiting(jobs, [30 * MS, 20 * MS, 40 * MS, 10 * MS])  # and one job is still waiting at the end
        self.assertEqual(figures["overtaken_percent"], 50)
        self.assertEqual((figures["failed_percent"], figures["still_waiting_percent"]), (50, 25))
        # A job whose client gave up has no wait. The job that is still waiting has waited for 80 ms.
        self.assertEqual((figures["wait_p50_ms"], figures["wait_max_ms"]), (30, 80))
        self.assertEqual(figures["note"], "1 jobs still waited at the end")

    def test_two_at_once_is_no_lock(self):
        with self.assertRaises(measure.Failed):
            self.waiting([measure.Job(1, 2 * MS, 8 * MS), measure.Job(2, 3 * MS, 9 * MS)])

    def test_a_lock_that_serves_nobody_in_time_still_has_waits(self):
        warm = measure.Job(1 * MS, 2 * MS, 30 * MS)
        figures = measure.waiting([warm], 10 * MS, [1 * MS, 20 * MS], 200)
        self.assertEqual((figures["wait_p50_ms"], figures["failed_percent"]), (10, 100))
        self.assertIsNone(figures["overtaken_percent"])

    def test_jobs_for_which_there_was_no_contender_are_said(self):
        jobs = measure.perfect(range(201))
        self.assertIn("201 jobs had arrived", self.waiting(jobs)["note"])
        self.assertEqual(self.waiting(jobs[:200])["note"], "")

    def test_a_perfect_queue_waits_for_those_before(self):
        jobs = measure.perfect([1 * MS, 2 * MS, 20 * MS])
        self.assertEqual([job.acquired // MS for job in jobs], [1, 6, 20])

    def test_arrivals_come_at_the_load(self):
        moments = measure.arrivals(50, 100)
        self.assertAlmostEqual(len(moments) * measure.HOLD_NS / 1e9 / 100, 0.5, delta=0.02)
        self.assertEqual(moments, sorted(set(moments)))


class Summary(unittest.TestCase):
    def test_turns(self):
        figures = summary(every(4, contenders=2, count=250))
        self.assertEqual(figures["ops_per_s"], 250)
        self.assertEqual(figures["hand_off_p50_us"], 3000)
        self.assertEqual(figures["hand_off_p99_us"], 3000)
        self.assertEqual(figures["max_min_share"], 1)
        self.assertEqual(figures["note"], "249 hand-offs to another in 250 grants")

    def test_only_what_falls_into_the_window_counts(self):
        figures = summary(every(100, contenders=2, count=30, first=-1000))
        self.assertEqual(figures["ops_per_s"], 10)
        # The first grant in the window counts as well: the other contender had the lock before it.
        self.assertIn("10 hand-offs to another in 10 grants", figures["note"])

    def test_getting_it_again_oneself_is_no_hand_off(self):
        greedy = [Grant((0, 0), i * MS, i * MS) for i in range(900)]
        figures = summary([*greedy, Grant((1, 0), 950 * MS, 950 * MS)])
        self.assertEqual(figures["hand_off_p50_us"], 51_000)
        self.assertIsNone(figures["hand_off_p99_us"], "one hand-off has no 99th percentile")
        self.assertEqual(figures["max_min_share"], 900)

    def test_who_got_nothing_is_said(self):
        figures = summary(every(4, contenders=2, count=250), contenders=5)
        self.assertIsNone(figures["max_min_share"])
        self.assertIn("3 of 5 contenders got nothing", figures["note"])

    def test_a_silence_and_those_who_gave_up_are_said(self):
        window = (0, 3000 * MS)
        figures = measure.summary(every(10, 1, 50), [5 * MS, 4000 * MS], window, 1, True)
        self.assertIn("nobody was granted for 2.5 s", figures["note"])
        self.assertIn("gave up 1 times", figures["note"])

    def test_two_at_once_is_no_lock(self):
        overlapping = every(4, contenders=2, count=10, held=5)
        with self.assertRaisesRegex(measure.Failed, "two held the lock at once"):
            summary(overlapping)
        self.assertIsNone(summary(overlapping, exclusive=False)["hand_off_p50_us"])

    def test_percentiles_by_nearest_rank(self):
        self.assertEqual(measure.percentile(range(1, 201), 50), 100)
        self.assertEqual(measure.percentile(range(1, 201), 99), 198)
        self.assertEqual(measure.percentile([7], 99), 7)


if __name__ == "__main__":
    unittest.main()
