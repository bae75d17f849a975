//! What packing costs: squared error against the source, by class of weights.

/// Weights that are told apart in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Query, key, value and output matrices.
    Attention,
    /// Gate rows.
    Gate,
    /// Up rows.
    Up,
    /// Down columns.
    Down,
    /// Token embeddings.
    Embedding,
    /// The output head.
    Head,
}

impl Class {
    /// Every class, in the order of the table.
    pub const ALL: [Class; 6] =
        [Class::Attention, Class::Gate, Class::Up, Class::Down, Class::Embedding, Class::Head];

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Attention => "attention",
            Class::Gate => "gate",
            Class::Up => "up",
            Class::Down => "down",
            Class::Embedding => "embedding",
            Class::Head => "head",
        }
    }
}

/// The loss of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Weights whose codes are the source's own.
    pub copied: u64,
    /// Weights whose codes were made from the source's values.
    pub requantised: u64,
    /// Sum of squared differences.
    pub error: f64,
    /// Sum of squared weights.
    pub weight: f64,
}

impl Loss {
    /// Adds weights and what was made of them; false when that is not finite.
    pub fn add(&mut self, source: &[f32], decoded: &[f32], is_copy: bool) -> bool {
        *(if is_copy { &mut self.copied } else { &mut self.requantised }) += source.len() as u64;
        for (&s, &d) in source.iter().zip(decoded) {
            self.error += (f64::from(s) - f64::from(d)).powi(2);
            self.weight += f64::from(s).powi(2);
        }
        self.error.is_finite()
    }

    /// Root mean square of the difference, relative to that of the weights.
    pub fn relative(&self) -> f64 {
        if self.weight > 0.0 { (self.error / self.weight).sqrt() } else { 0.0 }
    }
}

/// The loss of every class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Losses([Loss; Class::ALL.len()]);

impl Losses {
    /// That of `class`.
    pub fn of(&self, class: Class) -> &Loss {
        &self.0[class as usize]
    }

    /// That of `class`, to be added to.
    pub fn of_mut(&mut self, class: Class) -> &mut Loss {
        &mut self.0[class as usize]
    }

    /// A line for each class that a checkpoint can hold: no bit is lost.
    pub fn to_lines(self) -> String {
        let line = |loss: &Loss| {
            let bits = [loss.error, loss.weight].map(f64::to_bits);
            format!("{} {} {:x} {:x}\n", loss.copied, loss.requantised, bits[0], bits[1])
        };
        self.0.iter().map(line).collect()
    }

    /// Reads what [`Losses::to_lines`] wrote.
    pub fn from_lines<'l>(lines: &mut impl Iterator<Item = &'l str>) -> Option<Losses> {
        let mut losses = Losses::default();
        for loss in &mut losses.0 {
            let mut words = lines.next()?.split(' ');
            let bits = |word: &str| u64::from_str_radix(word, 16).ok().map(f64::from_bits);
            *loss = Loss {
                copied: words.next()?.parse().ok()?,
                requantised: words.next()?.parse().ok()?,
                error: bits(words.next()?)?,
                weight: bits(words.next()?)?,
            };
        }
        Some(losses)
    }
}
