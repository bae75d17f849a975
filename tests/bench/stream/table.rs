//! Medians of the rounds, and how they are printed.

use crate::common::{Figure, median};
use crate::contender::{Contender, Outcome};
use crate::disk::Rates;
use anyhow::{Context, Result};
use serde_json::json;

/// A contender at a budget, and what its runs said.
pub struct Row {
    contender: Box<dyn Contender>,
    tok_s: Vec<f64>,
    token_bytes: Vec<f64>,
    failed: Option<String>,
}

impl Row {
    pub fn new(contender: Box<dyn Contender>) -> Row {
        Row { contender, tok_s: Vec::new(), token_bytes: Vec::new(), failed: None }
    }

    /// One more run within `budget` bytes; none where an earlier one gave no figure.
    pub fn measure(&mut self, budget: u64) -> Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        match self.contender.measure(budget).with_context(|| self.contender.name())? {
            Outcome::Ran { tok_s, token_bytes } => {
                self.tok_s.push(tok_s);
                self.token_bytes.push(token_bytes);
            }
            Outcome::Failed(why) => self.failed = Some(why),
        }
        Ok(())
    }

    /// Its figures, where every run gave one; `ours` is our engine's speed.
    fn figures(&self, bound: f64, ours: f64) -> Option<Figures> {
        if self.failed.is_some() || self.tok_s.is_empty() {
            return None;
        }
        let (tok_s, token_bytes) = (Figure::of(&self.tok_s), median(&self.token_bytes));
        let gb_s = tok_s.median * token_bytes / 1e9;
        Some(Figures {
            token_mb: token_bytes / 1e6,
            gb_s,
            of_bound: gb_s / bound,
            of_ours: tok_s.median / ours,
            tok_s,
        })
    }
}

struct Figures {
    tok_s: Figure,
    token_mb: f64,
    gb_s: f64,
    of_bound: f64,
    of_ours: f64,
}

/// A budget and its rows, ours first.
pub struct Budget {
    /// As the command line has it.
    pub name: String,
    pub bytes: u64,
    pub rows: Vec<Row>,
}

/// Prints a row for each budget and contender, and what the disk gave meanwhile.
pub fn print(budgets: &[Budget], rates: &[Rates], json: bool) {
    let rate = |of: fn(&Rates) -> f64| Figure::of(&rates.iter().map(of).collect::<Vec<_>>());
    let (huge, ordinary) = (rate(|rates| rates.huge), rate(|rates| rates.ordinary));
    if !json {
        println!("tokens a second: median (least..most); bound: the disk's rate into huge pages");
        println!(
            "{:<8} {:<40} {:>18} {:>10} {:>6} {:>9} {:>8}",
            "budget", "engine", "tok/s", "MB a token", "GB/s", "of bound", "of ours"
        );
    }
    for budget in budgets {
        let ours = median(&budget.rows[0].tok_s);
        for row in &budget.rows {
            let figures = row.figures(huge.median, ours);
            if json {
                print_json(budget, row, figures.as_ref());
            } else {
                print_row(budget, row, figures.as_ref());
            }
        }
    }
    let list = |figure: &Figure| [figure.median, figure.least, figure.most];
    if json {
        let (huge, ordinary) = (list(&huge), list(&ordinary));
        println!("{}", json!({ "disk_huge_gb_s": huge, "disk_ordinary_gb_s": ordinary }));
    } else {
        println!("large direct reads into huge pages: {} GB/s", huge.text());
        println!("large direct reads into ordinary pages: {} GB/s", ordinary.text());
    }
}

fn print_row(budget: &Budget, row: &Row, figures: Option<&Figures>) {
    let (budget, engine) = (&budget.name, row.contender.name());
    match figures {
        Some(f) => println!(
            "{budget:<8} {engine:<40} {:>18} {:>10.1} {:>6.2} {:>8.0}% {:>8.2}",
            format!("{:.2} ({:.2}..{:.2})", f.tok_s.median, f.tok_s.least, f.tok_s.most),
            f.token_mb,
            f.gb_s,
            100.0 * f.of_bound,
            f.of_ours
        ),
        None => {
            let why = row.failed.as_deref().unwrap_or("not run");
            println!("{budget:<8} {engine:<40} {why}");
        }
    }
}

fn print_json(budget: &Budget, row: &Row, figures: Option<&Figures>) {
    let name = row.contender.name();
    let mut object = json!({ "budget_bytes": budget.bytes, "engine": name });
    match figures {
        Some(f) => {
            object["decode_tok_s"] = json!([f.tok_s.median, f.tok_s.least, f.tok_s.most]);
            object["token_mb"] = json!(f.token_mb);
            object["gb_s"] = json!(f.gb_s);
            object["of_bound"] = json!(f.of_bound);
            object["of_ours"] = json!(f.of_ours);
        }
        None => object["failed"] = json!(row.failed),
    }
    println!("{object}");
}
