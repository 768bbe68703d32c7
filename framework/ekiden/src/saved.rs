//! What a policy writes down for a version of itself whose state has another layout.

/// Room for bytes, of a fixed size because the host takes it before.
#[derive(Debug)]
pub struct Saved<'a> {
    room: &'a mut [u8],
    len: usize,
    fits: bool,
}

impl<'a> Saved<'a> {
    /// Nothing yet.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0, fits: true }
    }

    /// Adds bytes. What does not fit is not there, and then nothing is handed over.
    pub fn push(&mut self, bytes: &[u8]) {
        match self.room.get_mut(self.len..self.len + bytes.len()).filter(|_| self.fits) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.fits = false,
        }
    }

    /// How many bytes there are; `None` if they did not fit.
    pub fn written(&self) -> Option<usize> {
        self.fits.then_some(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_makes_the_whole_worthless() {
        let mut room = [0; 8];
        let mut saved = Saved::new(&mut room);
        saved.push(&[1; 6]);
        assert_eq!(saved.written(), Some(6));
        saved.push(&[2; 3]);
        saved.push(&[3; 1]);
        assert_eq!(saved.written(), None);
        assert_eq!(room, [1, 1, 1, 1, 1, 1, 0, 0]);
    }
}
