//! The measurements of a run.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::sample::Sample;

/// A median, with the smallest and the greatest value.
#[derive(Clone, Debug)]
pub struct Figure {
    pub section: String,
    pub row: String,
    pub column: String,
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

/// One run on one server.
#[derive(Default)]
pub struct Book {
    /// Server, machine, date, duration: what a reader needs to know before reading a figure.
    pub about: BTreeMap<String, String>,
    pub figures: Vec<Figure>,
    /// The figures of other clients, as they printed them.
    pub peers: Vec<serde_json::Value>,
    /// What was not measured, and why.
    pub missing: Vec<String>,
}

impl Book {
    /// Records a measurement.
    pub fn put(&mut self, section: &str, row: &str, column: &str, measured: &Sample) {
        let (value, least, most) = (measured.median(), measured.min(), measured.max());
        self.put_figure(section, row, column, value, least, most);
    }

    /// Records the median, the 99th percentile and the greatest value.
    pub fn put_percentiles(&mut self, section: &str, row: &str, measured: &Sample) {
        self.put_value(section, row, "p50", measured.median());
        self.put_value(section, row, "p99", measured.percentile(99));
        self.put_value(section, row, "max", measured.max());
    }

    /// Records a count, or a value that was measured once.
    pub fn put_value(&mut self, section: &str, row: &str, column: &str, value: f64) {
        self.put_figure(section, row, column, value, value, value);
    }

    fn put_figure(
        &mut self,
        section: &str,
        row: &str,
        column: &str,
        value: f64,
        least: f64,
        most: f64,
    ) {
        let spread = if least < most {
            format!(" ({} to {})", short(least), short(most))
        } else {
            String::new()
        };
        println!("  {row:<46} {column:<24} {}{spread}", short(value));
        let (section, row, column) = (section.to_owned(), row.to_owned(), column.to_owned());
        self.figures.push(Figure { section, row, column, value, least, most });
    }

    /// Records that something could not be measured here, and why.
    pub fn miss(&mut self, what: String) {
        println!("  NOT MEASURED: {what}");
        self.missing.push(what);
    }

    /// Takes one measurement. A panic in it is recorded, and the run continues.
    pub fn measure(&mut self, name: &str, work: impl FnOnce(&mut Book)) {
        println!("{name}");
        let begin = Instant::now();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            self.miss(format!("{name}: {}", said.unwrap_or_default()));
        }
        println!("  ({:.0} s)", begin.elapsed().as_secs_f64());
    }

    /// The median of one figure, if the figure exists.
    pub fn value(&self, section: &str, row: &str, column: &str) -> Option<f64> {
        let is_it = |f: &&Figure| f.section == section && f.row == row && f.column == column;
        self.figures.iter().find(is_it).map(|figure| figure.value)
    }

    /// The figure of `row` divided by that of `beside`, in this column.
    pub fn ratio(&self, section: &str, column: &str, row: &str, beside: &str) -> Option<f64> {
        Some(self.value(section, row, column)? / self.value(section, beside, column)?)
    }

    /// A property of the run.
    pub fn about(&self, name: &str) -> &str {
        self.about.get(name).map_or("", String::as_str)
    }

    /// When the run was measured, and with which module.
    pub fn when(&self) -> String {
        format!("{}, module at {}", self.about("date"), self.about("commit"))
    }

    /// The parts that were measured again later, and when.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        let whole = ["commit", "date", "machine", "profile", "server"];
        let all = self.about.iter().map(|(name, said)| (name.as_str(), said.as_str()));
        all.filter(move |(name, _)| !whole.contains(name))
    }

    /// Whether the run measured everything, not only some parts.
    pub fn is_whole(&self) -> bool {
        self.about("profile") != PARTS
    }
}

/// The profile of a server on which only some sections were measured.
pub const PARTS: &str = "partial";

/// The value with three significant digits.
pub fn short(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        format!("{:.2} M", value / 1e6)
    } else if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// The name of the column for this number.
pub fn column(size: usize) -> String {
    match size {
        0..1000 => size.to_string(),
        _ => format!("{} 000", size / 1000),
    }
}
