//! Medians of the rounds, and how they are printed.

use crate::common::{Figure, median};
use crate::engine::{LLAMA, OURS, Speed};
use crate::model::Model;
use serde_json::json;
use std::collections::BTreeMap;

/// Whose figures: rows come in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Number of the model.
    pub model: usize,
    pub engine: &'static str,
    pub threads: u32,
}

/// Tokens a second, round by round.
#[derive(Default)]
pub struct Series {
    decode: Vec<f64>,
    prefill: Vec<f64>,
}

impl Series {
    fn decode(&self) -> &[f64] {
        &self.decode
    }

    fn prefill(&self) -> &[f64] {
        &self.prefill
    }

    /// Adds a round.
    pub fn push(&mut self, speed: Speed) {
        self.decode.push(speed.decode);
        self.prefill.push(speed.prefill);
    }
}

type All = BTreeMap<Key, Series>;

/// A row: figures, and what they are of llama.cpp's best thread count and of the read bandwidth.
struct Row<'a> {
    model: &'a str,
    key: Key,
    decode: Figure,
    prefill: Figure,
    decode_of_llama: f64,
    prefill_of_llama: f64,
    gb_s: f64,
    of_read: f64,
}

impl<'a> Row<'a> {
    fn new(models: &'a [Model], all: &All, probes: &BTreeMap<u32, Vec<f64>>, key: Key) -> Row<'a> {
        let (model, series) = (&models[key.model], &all[&key]);
        let (decode, prefill) = (Figure::of(series.decode()), Figure::of(series.prefill()));
        let token_bytes =
            if key.engine == LLAMA { model.gguf_token_bytes } else { model.image_token_bytes };
        let gb_s = decode.median * token_bytes as f64 / 1e9;
        Row {
            model: &model.name,
            key,
            decode_of_llama: decode.median / best(all, LLAMA, key.model, Series::decode),
            prefill_of_llama: prefill.median / best(all, LLAMA, key.model, Series::prefill),
            decode,
            prefill,
            gb_s,
            of_read: gb_s / median(&probes[&key.threads]),
        }
    }

    fn print(&self) {
        println!(
            "{:<20} {:<10} {:>2} {:>26} {:>6.2} {:>7.1} {:>5.0}% {:>28} {:>6.2}",
            self.model,
            self.key.engine,
            self.key.threads,
            self.decode.text(),
            self.decode_of_llama,
            self.gb_s,
            100.0 * self.of_read,
            self.prefill.text(),
            self.prefill_of_llama
        );
    }

    fn print_json(&self, read_gb_s: f64) {
        let figure = |figure: &Figure| json!([figure.median, figure.least, figure.most]);
        let row = json!({
            "model": self.model, "engine": self.key.engine, "threads": self.key.threads,
            "decode_tok_s": figure(&self.decode), "decode_of_llama": self.decode_of_llama,
            "decode_gb_s": self.gb_s, "read_gb_s": read_gb_s, "of_read": self.of_read,
            "prefill_tok_s": figure(&self.prefill), "prefill_of_llama": self.prefill_of_llama,
        });
        println!("{row}");
    }
}

/// An engine's figure on a model at its best thread count.
fn best(all: &All, engine: &str, model: usize, of: fn(&Series) -> &[f64]) -> f64 {
    let its = all.iter().filter(|(key, _)| key.model == model && key.engine == engine);
    its.map(|(_, series)| median(of(series))).fold(0.0, f64::max)
}

/// Prints a row for each model, engine and thread count.
pub fn print(models: &[Model], all: &All, probes: &BTreeMap<u32, Vec<f64>>, json: bool) {
    let rows = all.keys().map(|&key| Row::new(models, all, probes, key));
    if json {
        rows.for_each(|row| row.print_json(median(&probes[&row.key.threads])));
        return;
    }
    println!("tokens a second: median (least..most); of: against llama.cpp's best thread count");
    println!(
        "{:<20} {:<10} {:>2} {:>26} {:>6} {:>7} {:>6} {:>28} {:>6}",
        "model", "engine", "t", "decode", "of", "GB/s", "of read", "prefill", "of"
    );
    rows.for_each(|row| row.print());
    for (threads, speeds) in probes {
        println!("read probe, {threads} threads: {} GB/s", Figure::of(speeds).text());
    }
    for (index, model) in models.iter().enumerate() {
        let ratio = |of| best(all, OURS, index, of) / best(all, LLAMA, index, of);
        println!(
            "{}: best against best, decode {:.2}, prefill {:.2} of llama.cpp",
            model.name,
            ratio(Series::decode),
            ratio(Series::prefill)
        );
        println!(
            "{}: a decoded token reads {:.1} MB of the image, {:.1} MB of the GGUF",
            model.name,
            model.image_token_bytes as f64 / 1e6,
            model.gguf_token_bytes as f64 / 1e6
        );
    }
}
