//! Curves for what a table shows badly: how costs grow with the number of waiters. Each curve is an
//! SVG file in `docs/benchmarks`.

use std::error::Error;
use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::book::Book;
use crate::{contended, flatness};

/// One picture: the rows of a section are its lines, and the columns run from left to right.
struct Plot {
    file: &'static str,
    title: &'static str,
    section: &'static str,
    rows: &'static [&'static str],
    x: &'static str,
}

const PLOTS: [Plot; 4] = [
    Plot {
        file: "cost-of-waiting",
        title: "Server CPU of one step, µs",
        section: flatness::SECTION,
        rows: &[
            flatness::HAND_OFF,
            flatness::PING,
            flatness::FAIR,
            flatness::READ,
            flatness::READ_BY_SCRIPTS,
            flatness::POLL,
        ],
        x: "how many wait or hold",
    },
    Plot {
        file: "grants",
        title: "Grants per second of one lock",
        section: contended::GRANTS,
        rows: &[contended::RLOCK, contended::RLOCK_SEARCHING, contended::REDISSON],
        x: "clients",
    },
    Plot {
        file: "hand-off-p50",
        title: "Release to the next grant, p50, µs",
        section: contended::P50,
        rows: &[contended::RLOCK, contended::RLOCK_SEARCHING, contended::REDISSON],
        x: "clients",
    },
    Plot {
        file: "hand-off-p99",
        title: "Release to the next grant, p99, µs",
        section: contended::P99,
        rows: &[contended::RLOCK, contended::RLOCK_SEARCHING, contended::REDISSON],
        x: "clients",
    },
];

const COLORS: [RGBColor; 6] = [
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
];

/// Draws all pictures for one run, into files with these names; returns the Markdown that shows
/// them.
pub fn draw(book: &Book) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks");
    std::fs::create_dir_all(&folder).unwrap();
    let mut shown = String::new();
    for plot in &PLOTS {
        plot.draw(book, &folder.join(format!("{}.svg", plot.file))).unwrap();
        shown += &format!("![{}](benchmarks/{}.svg)\n\n", plot.title, plot.file);
    }
    shown
}

impl Plot {
    fn points(&self, book: &Book, row: &str) -> Vec<(f64, f64)> {
        let figures = book.figures.iter().filter(|f| f.section == self.section && f.row == row);
        figures.map(|f| (f.column.replace(' ', "").parse().unwrap(), f.value)).collect()
    }

    fn draw(&self, book: &Book, path: &Path) -> Result<(), Box<dyn Error>> {
        let lines = self.rows.iter().map(|row| (*row, self.points(book, row)));
        let lines: Vec<_> = lines.filter(|(_, points)| !points.is_empty()).collect();
        let all = || lines.iter().flat_map(|(_, points)| points);
        let (x_max, y_max) = all().fold((10.0_f64, 1.0_f64), |m, p| (m.0.max(p.0), m.1.max(p.1)));
        let y_min = all().fold(y_max, |least, point| least.min(point.1)) / 2.0;
        // The legend is above all lines.
        let names = (lines.len() as f64 * 18.0 + 16.0) / 400.0;
        let y_end = y_max * 1.3 * (y_max / y_min).powf(names / (1.0 - names));
        let area = SVGBackend::new(path, (860, 480)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(format!("{} ({})", self.title, book.about("server")), ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d((0.9..x_max * 1.1).log_scale(), (y_min..y_end).log_scale())?;
        let number = |value: &f64| crate::book::short(*value);
        chart
            .configure_mesh()
            .x_desc(self.x)
            .x_label_formatter(&number)
            .y_label_formatter(&number)
            .label_style(("sans-serif", 14))
            .light_line_style(RGBColor(0xee, 0xee, 0xee))
            .draw()?;
        for ((row, points), color) in lines.iter().zip(COLORS) {
            chart
                .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)).point_size(4))?
                .label(*row)
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .label_font(("sans-serif", 13))
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(0xcc, 0xcc, 0xcc))
            .draw()?;
        area.present()?;
        Ok(())
    }
}
